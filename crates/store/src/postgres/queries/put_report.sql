-- A worker lives until $2, and says $3 of itself or nothing new. Gives the number of other workers that
-- live at $4 and last reported room, and the worker's own leases that have expired and are not among
-- those that its heartbeat lists ($5). The statement reads a bounded number of expired leases, the oldest
-- first: the reaper removes those of dead workers.
WITH worker AS (
    INSERT INTO tidegate.workers (id, alive_until, report) VALUES ($1, $2, $3::text::jsonb)
    ON CONFLICT (id) DO UPDATE
    SET alive_until = excluded.alive_until, report = coalesce(excluded.report, workers.report))
SELECT count(*) AS peers,
       ARRAY (SELECT token FROM (SELECT token, worker FROM tidegate.leases WHERE expires_at <= $4
                                 ORDER BY expires_at LIMIT 1000) AS expired
              WHERE worker = $1 AND token <> ALL ($5::bigint[]) LIMIT 100) AS unlisted
FROM tidegate.workers
WHERE id <> $1 AND alive_until > $4
  AND (report ->> 'accepting')::boolean AND (report ->> 'available')::bigint > 0
