-- Hands out the first ready rows over all lanes that nobody else is taking, under one new lease.
-- Every lane is an index range of its own, and the outer LIMIT stops the locking: no row is
-- locked that is not wanted. `{page}` leaves room for what others are taking at this moment.
--
-- All or nothing: where a limit began after one of them was made ready, or one belongs to a job
-- and that is not allowed for ($6), the rows are only locked and come back without a token. A
-- job's row among the first is noticed before any is locked: whoever may take it finds it free.
WITH first AS MATERIALIZED (
    SELECT candidate.*
    FROM unnest($1::bigint[]) AS of_lane (id)
    CROSS JOIN LATERAL (
        SELECT ctid AS row, rank, tag, task FROM tidegate.ready WHERE lane = of_lane.id
        ORDER BY rank, tag, task LIMIT {page}
    ) AS candidate
), refused AS MATERIALIZED (
    SELECT NOT $6 AND EXISTS (
        SELECT FROM (SELECT task FROM first ORDER BY rank, tag, task LIMIT $2) AS wanted
        JOIN tidegate.tasks t ON t.id = wanted.task AND t.job IS NOT NULL
    ) AS is_so
), picked AS MATERIALIZED (
    SELECT r.ctid AS row, r.task, r.lane, r.rank, r.tag, r.stamp, r.gated, r.since
    FROM first
    JOIN tidegate.ready r ON r.ctid = first.row
    WHERE NOT (SELECT is_so FROM refused)
    ORDER BY first.rank, first.tag, first.task
    LIMIT $2
    FOR UPDATE OF r SKIP LOCKED
), known AS MATERIALIZED (
    SELECT picked.*, t.kind, t.queue, t.job, t.workflow, t.payload, t.spent,
           coalesce(t.group_name, t.kind) AS group_name, t.weight,
           coalesce(t.max_attempts, k.max_attempts, 1) AS max_attempts,
           coalesce(t.timeout_ms, k.timeout_ms) AS timeout_ms,
           j.id AS job_limit,
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
    FROM (SELECT bool_and(NOT is_stale AND ($6 OR job_limit IS NULL)) AS is_so FROM known) AS fine
    WHERE fine.is_so
    RETURNING token
), gone AS (
    DELETE FROM tidegate.ready r USING picked, lease WHERE r.ctid = picked.row
), started AS (
    INSERT INTO tidegate.running (task, token, gated, started_at)
    SELECT known.task, lease.token, known.gated, $5 FROM known CROSS JOIN lease
)
SELECT known.*, lease.token, held.limits, held.numbers, held.names, refused.is_so AS is_refused
FROM refused
LEFT JOIN known ON true
LEFT JOIN lease ON true
LEFT JOIN LATERAL (
    SELECT array_agg(s.limit_id ORDER BY s.limit_id, s.number) AS limits,
           array_agg(s.number ORDER BY s.limit_id, s.number) AS numbers,
           array_agg(l.name ORDER BY s.limit_id, s.number) AS names
    FROM tidegate.slots s JOIN tidegate.limits l ON l.id = s.limit_id
    WHERE known.gated AND s.task = known.task
) AS held ON true
ORDER BY known.rank, known.tag, known.task
