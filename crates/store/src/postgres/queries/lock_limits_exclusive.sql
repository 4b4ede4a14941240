-- Nobody hands slots of these limits on until the transaction ends; only those of groups are handed
-- on. Limits share a bounded number of such locks: a transaction may need very many limits, and the
-- server has room for few locks.
SELECT pg_advisory_xact_lock(7453127, bucket)
FROM (SELECT DISTINCT mod(one.id, 256)::int AS bucket
      FROM unnest($1::bigint[]) AS one (id)
      CROSS JOIN LATERAL (SELECT name FROM tidegate.limits WHERE id = one.id OFFSET 0) AS l
      WHERE starts_with(l.name, 'group:')
      ORDER BY bucket) AS ordered
