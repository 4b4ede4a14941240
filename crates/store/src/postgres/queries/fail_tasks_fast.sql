-- Writes the decisions about failed attempts: tasks $1, tokens $2, used attempts $3, crashes $4, errors $5. A
-- task is scheduled for $6, or ends in state $7 and is kept until $8; at the time $9 or earlier means it is removed
-- at once, NULL means it is kept for ever. A task that its lease still lists is skipped: the previous statement did
-- not end its attempt.
WITH failed AS MATERIALIZED (
    SELECT f.*
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bigint[],
                $7::int[], $8::bigint[])
         AS f (task, token, new_attempts_used, new_crashes, new_error, run_at, state, remove_at)
    -- A LIMIT, so that it does not become a join.
    WHERE (SELECT l.token FROM tidegate.leases l
           WHERE l.token = f.token AND f.task = ANY (l.tasks) LIMIT 1) IS NULL
), retried AS (
    UPDATE tidegate.tasks t
    SET attempts_used = f.new_attempts_used, crashes = f.new_crashes, error = coalesce(f.new_error, t.error),
        due_at = f.run_at
    FROM failed f
    CROSS JOIN LATERAL (SELECT ctid FROM tidegate.tasks WHERE id = f.task OFFSET 0) AS row
    WHERE t.ctid = row.ctid AND f.run_at IS NOT NULL
), scheduled AS (
    INSERT INTO tidegate.scheduled (task, run_at)
    SELECT task, run_at FROM failed WHERE run_at IS NOT NULL
), gone AS (
    DELETE FROM tidegate.tasks t
    USING failed f
    CROSS JOIN LATERAL (SELECT ctid FROM tidegate.tasks WHERE id = f.task OFFSET 0) AS row
    WHERE t.ctid = row.ctid AND f.run_at IS NULL
    RETURNING t.*, f.new_attempts_used, f.new_crashes, f.new_error, f.state, f.remove_at
), moved AS (
    INSERT INTO tidegate.finished (id, lane, kind, queue, group_name, job, workflow, unique_key, weight,
                                   priority, max_attempts, timeout_ms, attempts_used, crashes, due_at,
                                   created_at, payload, on_failure, trace, error, state, result,
                                   finished_at, remove_day)
    SELECT id, lane, kind, queue, group_name, job, workflow, unique_key, weight, priority, max_attempts,
           timeout_ms, new_attempts_used, new_crashes, due_at, created_at, payload, on_failure, trace,
           coalesce(new_error, error), state, NULL, $9, coalesce(remove_at / 86400000, 2147483647)
    FROM gone WHERE coalesce(remove_at > $9, true)
), freed AS (
    DELETE FROM tidegate.unique_keys WHERE key = ANY (ARRAY (
        SELECT unique_key FROM gone WHERE unique_key IS NOT NULL))
)
SELECT count(*) AS tasks FROM failed
