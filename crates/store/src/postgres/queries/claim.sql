-- Hands out the first ready rows over all lanes that nobody else is taking, under one new lease;
-- where something waits at the gate that might come before them, or the worker has to be noted,
-- it only says so, unless it is told to go on ($7).
--
-- One lane is one index range, from where the last claim of this process ended ($9 to $12; none of a
-- lane that is looked at from its start). Of several, each is a range of its own, of `{page}` rows:
-- where that was too little, nothing is taken that sorts behind what was not read, and `is_cut`
-- says that there may be more. The outer LIMIT stops the locking: no row is locked that is not
-- wanted.
--
-- All or nothing: where a limit began after one of them was made ready, the rows are only locked
-- and come back without a token.
--
-- What holds no slots is listed in the lease, and so is what holds one slot and can hand it on. No
-- limit's lock is needed: that a job's tasks left its window is noted in a row of its own. What was
-- handed on in the same transaction has a lease already, and the rest is added to it.
, begun AS MATERIALIZED (
    SELECT token, cardinality(tasks) AS tasks FROM tidegate.leases
    WHERE token = nullif(current_setting('tidegate.lease', true), '')::bigint
), wanted AS MATERIALIZED (
    SELECT greatest($6::bigint - coalesce((SELECT tasks FROM begun), 0), 0) AS tasks
), lane AS MATERIALIZED (
    SELECT open.id, open.max_attempts, open.timeout_ms,
           coalesce(($10::bigint[])[floor.place], -9223372036854775808) AS rank,
           coalesce(($11::bigint[])[floor.place], 0) AS tag,
           coalesce(($12::bigint[])[floor.place], 0) AS task
    FROM open CROSS JOIN seen
    CROSS JOIN LATERAL (SELECT array_position($9::bigint[], open.id) AS place) AS floor
    WHERE open.id <> ALL ($8::bigint[]) AND seen.is_noted
      AND ($7 OR NOT seen.arrivals AND seen.dirty = '{}' AND seen.no_worker = '{}')
      -- The exits that were told in the same transaction are all ended.
      AND coalesce(current_setting('tidegate.has_exits', true), '') <> 'true'
), single AS (
    SELECT min(id) AS id, min(max_attempts) AS max_attempts, min(timeout_ms) AS timeout_ms,
           min(rank) AS rank, min(tag) AS tag, min(task) AS task
    FROM lane HAVING count(*) = 1
), of_one AS MATERIALIZED (
    SELECT r.ctid AS row, r.task, r.lane, r.rank, r.tag, r.stamp, r.gated, r.since,
           (SELECT max_attempts FROM single) AS kind_attempts,
           (SELECT timeout_ms FROM single) AS kind_timeout_ms
    FROM tidegate.ready r
    WHERE r.lane = (SELECT id FROM single)
      AND (r.rank, r.tag, r.task) >= ((SELECT rank FROM single), (SELECT tag FROM single),
                                      (SELECT task FROM single))
    ORDER BY r.rank, r.tag, r.task LIMIT (SELECT tasks FROM wanted) FOR UPDATE OF r SKIP LOCKED
), candidate AS MATERIALIZED (
    SELECT first.*
    FROM lane CROSS JOIN LATERAL (
        SELECT r.ctid AS row, r.rank, r.tag, r.task, lane.max_attempts, lane.timeout_ms,
               row_number() OVER (ORDER BY r.rank, r.tag, r.task) AS place
        FROM tidegate.ready r
        WHERE r.lane = lane.id AND (r.rank, r.tag, r.task) >= (lane.rank, lane.tag, lane.task)
        ORDER BY r.rank, r.tag, r.task LIMIT {page}
    ) AS first
    WHERE NOT EXISTS (SELECT FROM single)
), cut AS MATERIALIZED (
    SELECT rank, tag, task FROM candidate WHERE place = {page} ORDER BY rank, tag, task LIMIT 1
), of_many AS MATERIALIZED (
    SELECT r.ctid AS row, r.task, r.lane, r.rank, r.tag, r.stamp, r.gated, r.since,
           candidate.max_attempts, candidate.timeout_ms
    FROM candidate JOIN tidegate.ready r ON r.ctid = candidate.row
    WHERE NOT EXISTS (SELECT FROM cut)
       OR (candidate.rank, candidate.tag, candidate.task) <= ((SELECT rank FROM cut),
                                                              (SELECT tag FROM cut),
                                                              (SELECT task FROM cut))
    ORDER BY candidate.rank, candidate.tag, candidate.task
    LIMIT (SELECT tasks FROM wanted) FOR UPDATE OF r SKIP LOCKED
), picked AS MATERIALIZED (
    SELECT * FROM of_one UNION ALL SELECT * FROM of_many
), known AS MATERIALIZED (
    SELECT picked.*, t.kind, t.queue, t.job, t.workflow, t.payload, t.spent,
           coalesce(t.group_name, t.kind) AS group_name, t.weight,
           coalesce(t.max_attempts, picked.kind_attempts, 1) AS max_attempts,
           coalesce(t.timeout_ms, picked.kind_timeout_ms) AS timeout_ms,
           CASE WHEN j.share_weight IS NOT NULL THEN j.id END AS job_limit, j.window_full,
           held.limits, held.numbers,
           cardinality(held.limits) = 1 AND t.job IS NULL AND t.workflow IS NULL AND t.weight = 1
               AS is_plain,
           -- Where no limit began since, none has to be looked at.
           picked.stamp < seen.limits_version AND EXISTS (
               SELECT FROM tidegate.limits l
               WHERE l.name IN ('group:' || coalesce(t.group_name, t.kind), 'job:' || t.job,
                                'workflow:' || t.workflow)
                 AND l.since > picked.stamp) AS is_stale
    FROM seen CROSS JOIN picked
    CROSS JOIN LATERAL (SELECT * FROM tidegate.tasks WHERE id = picked.task OFFSET 0) AS t
    LEFT JOIN LATERAL (
        SELECT id, share_weight, window_full FROM tidegate.limits
        WHERE t.job IS NOT NULL AND name = 'job:' || t.job OFFSET 0
    ) AS j ON true
    CROSS JOIN LATERAL (
        SELECT CASE WHEN picked.gated THEN ARRAY (
                   SELECT s.limit_id
                   FROM (SELECT * FROM tidegate.slots WHERE task = picked.task OFFSET 0) AS s
                   ORDER BY s.limit_id, s.number) END AS limits,
               CASE WHEN picked.gated THEN ARRAY (
                   SELECT s.number
                   FROM (SELECT * FROM tidegate.slots WHERE task = picked.task OFFSET 0) AS s
                   ORDER BY s.limit_id, s.number) END AS numbers
    ) AS held
), summed AS MATERIALIZED (
    -- Looked at once, so that what is not needed is not looked for.
    SELECT coalesce(array_agg(task) FILTER (WHERE is_plain), '{}') AS holding,
           coalesce(array_agg(limits[1]) FILTER (WHERE is_plain), '{}') AS limits,
           coalesce(array_agg(numbers[1]) FILTER (WHERE is_plain), '{}') AS numbers,
           coalesce(array_agg(task) FILTER (WHERE NOT gated), '{}') AS tasks, max(tag) AS tag,
           min(task) AS lowest,
           bool_and(NOT is_stale) AS is_fine, bool_or(gated) AS has_gated,
           bool_or(job_limit IS NOT NULL) AS has_jobs
    FROM known
), made AS (
    INSERT INTO tidegate.leases (token, worker, expires_at, started_at, tasks, limits, numbers)
    SELECT nextval('tidegate.tokens'), $3, moment.now + $4, moment.now,
           summed.holding || summed.tasks, summed.limits, summed.numbers
    FROM moment CROSS JOIN summed
    WHERE summed.is_fine AND NOT EXISTS (SELECT FROM begun)
    RETURNING token, expires_at
), grown AS (
    UPDATE tidegate.leases l
    SET tasks = l.tasks || summed.holding || summed.tasks, limits = l.limits || summed.limits,
        numbers = l.numbers || summed.numbers
    FROM summed WHERE l.token = (SELECT token FROM begun) AND summed.is_fine
    RETURNING l.token, l.expires_at
), lease AS (
    SELECT token, expires_at FROM made UNION ALL SELECT token, expires_at FROM grown
), gone AS (
    DELETE FROM tidegate.ready WHERE ctid = ANY (ARRAY (SELECT row FROM known CROSS JOIN lease))
), started AS (
    INSERT INTO tidegate.running (task, token, gated, started_at)
    SELECT known.task, lease.token, true, moment.now FROM known CROSS JOIN lease CROSS JOIN moment
    WHERE known.gated AND known.is_plain IS NOT TRUE AND (SELECT has_gated FROM summed)
), unwritten AS (
    DELETE FROM tidegate.slots WHERE task = ANY (ARRAY (
        SELECT unnest(summed.holding) FROM summed CROSS JOIN lease))
), passed AS (
    INSERT INTO tidegate.passes (limit_id, tasks, urgent)
    SELECT job_limit, count(*), bool_or(window_full) FROM known CROSS JOIN lease
    WHERE job_limit IS NOT NULL AND (SELECT has_jobs FROM summed) GROUP BY job_limit
), clock AS (
    -- Where a job's task goes ahead of the clock. Nobody waits for the clock: whoever meets
    -- another who sets it leaves it to them, and it is behind by one claim.
    UPDATE tidegate.counters SET virtual_time = (SELECT tag FROM summed)
    WHERE ctid = ANY (ARRAY (
        SELECT c.ctid FROM tidegate.counters c
        WHERE c.virtual_time < (SELECT tag FROM summed CROSS JOIN lease)
          AND (SELECT seen.virtual_time < summed.tag FROM seen CROSS JOIN summed)
        FOR UPDATE SKIP LOCKED))
)
-- What is read of every row stands first: columns are found by name. They come in no order.
SELECT known.task, lease.token, lease.expires_at, seen.now, known.kind, known.queue,
       known.group_name, known.weight, known.payload, known.spent, known.max_attempts,
       known.timeout_ms, known.job, known.workflow, known.limits, known.numbers,
       CASE WHEN known.gated THEN ARRAY (
           SELECT l.name FROM unnest(known.limits) WITH ORDINALITY AS held (id, place)
           CROSS JOIN LATERAL (SELECT name FROM tidegate.limits WHERE id = held.id OFFSET 0) AS l
           ORDER BY held.place) END AS names,
       known.job_limit, known.is_stale,
       known.lane, known.rank, known.tag, known.stamp, known.gated, known.since,
       seen.virtual_time, seen.limits_version, seen.is_noted, seen.arrivals,
       -- Lists go with one row, or with an answer that has no task.
       CASE WHEN known.task IS NULL OR known.task = (SELECT lowest FROM summed)
            THEN seen.open END AS open,
       seen.next_due,
       CASE WHEN known.task IS NULL THEN seen.dirty END AS dirty,
       CASE WHEN known.task IS NULL THEN seen.no_worker END AS no_worker,
       EXISTS (SELECT FROM cut) AND (SELECT count(*) FROM picked) < (SELECT tasks FROM wanted)
           AS is_cut,
       (SELECT (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint)
           AS took_us
FROM seen
LEFT JOIN known ON true
LEFT JOIN lease ON true
