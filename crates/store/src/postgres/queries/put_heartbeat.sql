-- Records a heartbeat at $4: the worker lives until $2, and until then the reaper leaves its expired leases to
-- it. A report ($3) replaces the one before. Returns the number of other workers that live at $4 and last
-- reported room, and the worker's own leases that have expired and are not among those that its heartbeat
-- lists ($5). The statement reads a bounded number of expired leases, the oldest first: the reaper removes
-- those of workers that send no heartbeats, and the others one lease length after their expiry. The subquery is
-- hashed; an array would be searched from its start for each lease, and after an outage there are many of both.
WITH worker AS (
    INSERT INTO tidegate.workers (id, alive_until, heartbeat_expires_at, heartbeat_lease_ms, report)
    VALUES ($1, $2, $2, $2::bigint - $4::bigint, $3::text::jsonb)
    ON CONFLICT (id) DO UPDATE
    SET alive_until = excluded.alive_until, heartbeat_expires_at = excluded.heartbeat_expires_at,
        heartbeat_lease_ms = excluded.heartbeat_lease_ms, report = coalesce(excluded.report, workers.report))
SELECT count(*) AS peers,
       ARRAY (SELECT token FROM (SELECT token, worker FROM tidegate.leases WHERE expires_at <= $4
                                 ORDER BY expires_at LIMIT 10000) AS expired
              WHERE worker = $1 AND token NOT IN (SELECT unnest($5::bigint[])) LIMIT 100) AS unlisted
FROM tidegate.workers
WHERE id <> $1 AND alive_until > $4
  AND (report ->> 'accepting')::boolean AND (report ->> 'free')::bigint > 0
