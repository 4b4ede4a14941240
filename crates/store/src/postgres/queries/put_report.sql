-- A worker lives until $2, and says $3 of itself or nothing new. Gives the number of other workers that
-- live at $4 and last reported room.
WITH worker AS (
    INSERT INTO tidegate.workers (id, alive_until, report) VALUES ($1, $2, $3::text::jsonb)
    ON CONFLICT (id) DO UPDATE
    SET alive_until = excluded.alive_until, report = coalesce(excluded.report, workers.report))
SELECT count(*) FROM tidegate.workers
WHERE id <> $1 AND alive_until > $4
  AND (report ->> 'accepting')::boolean AND (report ->> 'available')::bigint > 0
