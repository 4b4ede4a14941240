-- Hands out the first ready rows over all lanes that nobody else is taking, under one new lease.
-- Every lane is an index range of its own, and the outer LIMIT stops the locking: no row is
-- locked that is not wanted. `{page}` leaves room for what others are taking at this moment.
--
-- All or nothing: where a limit began after one of them was made ready, the rows are only locked
-- and come back without a token.
--
-- No limit's lock is needed: that a job's tasks left its window is noted in a row of its own.
WITH picked AS MATERIALIZED (
    SELECT r.ctid AS row, r.task, r.lane, r.rank, r.tag, r.stamp, r.gated, r.since
    FROM unnest($1::bigint[]) AS of_lane (id)
    CROSS JOIN LATERAL (
        SELECT ctid AS row, rank, tag, task FROM tidegate.ready WHERE lane = of_lane.id
        ORDER BY rank, tag, task LIMIT {page}
    ) AS candidate
    JOIN tidegate.ready r ON r.ctid = candidate.row
    ORDER BY candidate.rank, candidate.tag, candidate.task
    LIMIT $2
    FOR UPDATE OF r SKIP LOCKED
), known AS MATERIALIZED (
    SELECT picked.*, t.kind, t.queue, t.job, t.workflow, t.payload, t.spent,
           coalesce(t.group_name, t.kind) AS group_name, t.weight,
           coalesce(t.max_attempts, k.max_attempts, 1) AS max_attempts,
           coalesce(t.timeout_ms, k.timeout_ms) AS timeout_ms,
           CASE WHEN j.share_weight IS NOT NULL THEN j.id END AS job_limit, j.window_full,
           coalesce(greatest(w.since, j.since, g.since) > picked.stamp, false) AS is_stale
    FROM picked
    JOIN tidegate.tasks t ON t.id = picked.task
    LEFT JOIN tidegate.kinds k ON k.name = t.kind
    LEFT JOIN tidegate.limits w ON w.name = 'workflow:' || t.workflow
    LEFT JOIN tidegate.limits j ON j.name = 'job:' || t.job
    LEFT JOIN tidegate.limits g ON g.name = 'group:' || coalesce(t.group_name, t.kind)
), lease AS (
    INSERT INTO tidegate.leases (token, worker, expires_at)
    SELECT nextval('tidegate.tokens'), $3, $4
    FROM (SELECT bool_and(NOT is_stale) AS is_so FROM known) AS fine
    WHERE fine.is_so
    RETURNING token
), gone AS (
    DELETE FROM tidegate.ready r USING picked, lease WHERE r.ctid = picked.row
), started AS (
    INSERT INTO tidegate.running (task, token, gated, started_at)
    SELECT known.task, lease.token, known.gated, $5 FROM known CROSS JOIN lease
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
SELECT known.*, lease.token, held.limits, held.numbers, held.names
FROM known
LEFT JOIN lease ON true
LEFT JOIN LATERAL (
    SELECT array_agg(s.limit_id ORDER BY s.limit_id, s.number) AS limits,
           array_agg(s.number ORDER BY s.limit_id, s.number) AS numbers,
           array_agg(l.name ORDER BY s.limit_id, s.number) AS names
    FROM tidegate.slots s JOIN tidegate.limits l ON l.id = s.limit_id
    WHERE known.gated AND s.task = known.task
) AS held ON true
ORDER BY known.rank, known.tag, known.task
