-- What whoever ends attempts under the leases $1 holds to the end, in the one order of locks: the version
-- of the limits is shared, and then the limits whose slots the leases list, as they are; the leases
-- are its own. They lose tasks and gain none, so the limits that are read here are all.
WITH version AS MATERIALIZED (
    SELECT pg_advisory_xact_lock_shared(7453126, 1)
), shared AS MATERIALIZED (
    SELECT pg_advisory_xact_lock_shared(7453127, bucket)
    FROM (SELECT DISTINCT mod(listed.id, 256)::int AS bucket
          FROM tidegate.leases l CROSS JOIN LATERAL unnest(l.limits) AS listed (id)
          WHERE l.token = ANY ($1)
          ORDER BY bucket) AS ordered
)
SELECT token FROM tidegate.leases
WHERE token = ANY ($1)
  -- Read from left to right, before the first lease.
  AND (SELECT count(*) FROM version) <= 1 + (SELECT count(*) FROM shared)
ORDER BY token FOR UPDATE
