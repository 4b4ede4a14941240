-- Hands out the first ready rows over all lanes that nobody else is taking, under one new lease;
-- where something waits at the gate that might come before them, or the worker has to be noted,
-- it only says so, unless it is told to go on ($7).
--
-- One lane is one index range. Of several, each is a range of its own, and the outer LIMIT stops
-- the locking: no row is locked that is not wanted. `{page}` leaves room for what others are
-- taking at this moment; where it was too little, `is_cut` says so.
--
-- All or nothing: where a limit began after one of them was made ready, the rows are only locked
-- and come back without a token.
--
-- What holds no slots is listed in the lease. No limit's lock is needed: that a job's tasks left
-- its window is noted in a row of its own.
, lane AS MATERIALIZED (
    SELECT open.id FROM open CROSS JOIN seen
    WHERE open.id <> ALL ($8::bigint[]) AND seen.is_noted
      AND ($7 OR NOT seen.arrivals AND seen.dirty = '{}' AND seen.no_worker = '{}')
      -- The exits that were told in the same transaction are all ended.
      AND coalesce(current_setting('tidegate.has_exits', true), '') <> 'true'
), single AS (
    SELECT min(id) AS id FROM lane HAVING count(*) = 1
), of_one AS MATERIALIZED (
    SELECT r.ctid AS row, r.task, r.lane, r.rank, r.tag, r.stamp, r.gated, r.since
    FROM tidegate.ready r WHERE r.lane = (SELECT id FROM single)
    ORDER BY r.rank, r.tag, r.task LIMIT $6 FOR UPDATE OF r SKIP LOCKED
), candidate AS MATERIALIZED (
    SELECT first.*
    FROM lane CROSS JOIN LATERAL (
        SELECT ctid AS row, rank, tag, task FROM tidegate.ready WHERE lane = lane.id
        ORDER BY rank, tag, task LIMIT {page}
    ) AS first
    WHERE NOT EXISTS (SELECT FROM single)
), of_many AS MATERIALIZED (
    SELECT r.ctid AS row, r.task, r.lane, r.rank, r.tag, r.stamp, r.gated, r.since
    FROM candidate JOIN tidegate.ready r ON r.ctid = candidate.row
    ORDER BY candidate.rank, candidate.tag, candidate.task
    LIMIT $6 FOR UPDATE OF r SKIP LOCKED
), picked AS MATERIALIZED (
    SELECT * FROM of_one UNION ALL SELECT * FROM of_many
), known AS MATERIALIZED (
    SELECT picked.*, t.kind, t.queue, t.job, t.workflow, t.payload, t.spent,
           coalesce(t.group_name, t.kind) AS group_name, t.weight,
           coalesce(t.max_attempts, k.max_attempts, 1) AS max_attempts,
           coalesce(t.timeout_ms, k.timeout_ms) AS timeout_ms,
           CASE WHEN j.share_weight IS NOT NULL THEN j.id END AS job_limit, j.window_full,
           -- Where no limit began since, none has to be looked at.
           picked.stamp < seen.limits_version AND EXISTS (
               SELECT FROM tidegate.limits l
               WHERE l.name IN ('group:' || coalesce(t.group_name, t.kind), 'job:' || t.job,
                                'workflow:' || t.workflow)
                 AND l.since > picked.stamp) AS is_stale
    FROM seen CROSS JOIN picked
    JOIN tidegate.tasks t ON t.id = picked.task
    -- OFFSET 0 keeps these a look into an index for each row, however small the tables were when
    -- the plan was made.
    LEFT JOIN LATERAL (
        SELECT max_attempts, timeout_ms FROM tidegate.kinds WHERE name = t.kind OFFSET 0
    ) AS k ON true
    LEFT JOIN LATERAL (
        SELECT id, share_weight, window_full FROM tidegate.limits
        WHERE t.job IS NOT NULL AND name = 'job:' || t.job OFFSET 0
    ) AS j ON true
), lease AS (
    INSERT INTO tidegate.leases (token, worker, expires_at, started_at, tasks)
    SELECT nextval('tidegate.tokens'), $3, moment.now + $4, moment.now, fine.tasks
    FROM moment
    CROSS JOIN (SELECT coalesce(array_agg(task) FILTER (WHERE NOT gated), '{}') AS tasks
                FROM known HAVING bool_and(NOT is_stale)) AS fine
    RETURNING token
), gone AS (
    DELETE FROM tidegate.ready r USING picked, lease WHERE r.ctid = picked.row
), started AS (
    INSERT INTO tidegate.running (task, token, gated, started_at)
    SELECT known.task, lease.token, true, moment.now FROM known CROSS JOIN lease CROSS JOIN moment
    WHERE known.gated
), passed AS (
    INSERT INTO tidegate.passes (limit_id, tasks, urgent)
    SELECT job_limit, count(*), bool_or(window_full) FROM known CROSS JOIN lease
    WHERE job_limit IS NOT NULL GROUP BY job_limit
), clock AS (
    -- Where a job's task goes ahead of the clock. Nobody waits for the clock: whoever meets
    -- another who sets it leaves it to them, and it is behind by one claim.
    UPDATE tidegate.counters c SET virtual_time = ahead.tag
    FROM (SELECT free.ctid AS row, furthest.tag
          FROM (SELECT max(tag) AS tag FROM known CROSS JOIN lease) AS furthest
          CROSS JOIN LATERAL (
              SELECT ctid FROM tidegate.counters WHERE virtual_time < furthest.tag
              FOR UPDATE SKIP LOCKED
          ) AS free) AS ahead
    WHERE c.ctid = ahead.row
)
-- What is read of every row stands first: columns are found by name.
SELECT known.task, lease.token, seen.now, known.kind, known.queue, known.group_name, known.weight,
       known.payload, known.spent, known.max_attempts, known.timeout_ms, known.job,
       known.workflow,
       CASE WHEN known.gated THEN ARRAY (
           SELECT s.limit_id FROM tidegate.slots s WHERE s.task = known.task
           ORDER BY s.limit_id, s.number) END AS limits,
       CASE WHEN known.gated THEN ARRAY (
           SELECT s.number FROM tidegate.slots s WHERE s.task = known.task
           ORDER BY s.limit_id, s.number) END AS numbers,
       CASE WHEN known.gated THEN ARRAY (
           SELECT l.name FROM tidegate.slots s JOIN tidegate.limits l ON l.id = s.limit_id
           WHERE s.task = known.task ORDER BY s.limit_id, s.number) END AS names,
       known.job_limit, known.is_stale,
       known.lane, known.rank, known.tag, known.stamp, known.gated, known.since,
       seen.virtual_time, seen.limits_version, seen.is_noted, seen.arrivals,
       -- Lists go with an answer that has no task.
       CASE WHEN known.task IS NULL THEN seen.open END AS open,
       CASE WHEN known.task IS NULL THEN seen.dirty END AS dirty,
       CASE WHEN known.task IS NULL THEN seen.no_worker END AS no_worker,
       (SELECT count(*) FROM candidate) >= {page} AND (SELECT count(*) FROM picked) < $6 AS is_cut
FROM seen
LEFT JOIN known ON true
LEFT JOIN lease ON true
ORDER BY known.rank, known.tag, known.task
