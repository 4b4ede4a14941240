-- The same as `hold.sql` for whoever hands slots on. Between the two, the limits whose slots the
-- leases list are shared, and stay as they are. Leases lose tasks and gain none, so those that are read
-- here are all.
WITH version AS MATERIALIZED (
    SELECT pg_advisory_xact_lock_shared(7453126, 1)
), shared AS MATERIALIZED (
    SELECT pg_advisory_xact_lock_shared(7453127, bucket)
    FROM (SELECT DISTINCT mod(listed.id, 256)::int AS bucket
          FROM tidegate.leases l CROSS JOIN LATERAL unnest(l.limits) AS listed (id)
          WHERE l.token = ANY ($1) AND (SELECT count(*) FROM version) = 1
          ORDER BY bucket) AS ordered
)
SELECT token FROM tidegate.leases
WHERE token = ANY ($1) AND (SELECT count(*) FROM shared) >= 0
ORDER BY token FOR UPDATE
