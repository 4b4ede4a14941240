-- Moves tasks to those that ended. Fails, by a division by zero, where one is missing: a COMMIT is sent
-- together with this statement.
WITH gone AS (
    DELETE FROM tidegate.tasks t
    USING unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::int[], $6::bytea[],
                 $7::bigint[]) AS n (task, new_attempts_used, new_crashes, new_error, state, result, remove_at)
    CROSS JOIN LATERAL (SELECT ctid FROM tidegate.tasks WHERE id = n.task OFFSET 0) AS row
    WHERE t.ctid = row.ctid
    RETURNING t.*, n.*
), moved AS (
    INSERT INTO tidegate.finished (id, lane, kind, queue, group_name, job, workflow, unique_key, weight,
                                   priority, max_attempts, timeout_ms, attempts_used, crashes, due_at,
                                   created_at, payload, on_failure, trace, error, state, result,
                                   finished_at, remove_day)
SELECT id, lane, kind, queue, group_name, job, workflow, unique_key, weight, priority, max_attempts,
       timeout_ms, new_attempts_used, new_crashes, due_at, created_at, payload, on_failure, trace,
       new_error, state, result, $8,
       coalesce(remove_at / 86400000, 2147483647)
    FROM gone
    RETURNING 1
)
SELECT 1 / (count(*) = cardinality($1))::int AS is_all FROM moved
