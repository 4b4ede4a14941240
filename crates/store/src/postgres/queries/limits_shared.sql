-- The limits whose slots some leases list, as they are until the transaction ends. Leases lose
-- tasks and gain none, so those that are read here are all.
SELECT pg_advisory_xact_lock_shared(7453127, bucket)
FROM (SELECT DISTINCT mod(listed.id, 256)::int AS bucket
      FROM tidegate.leases l CROSS JOIN LATERAL unnest(l.limits) AS listed (id)
      WHERE l.token = ANY ($1)
      ORDER BY bucket) AS ordered
