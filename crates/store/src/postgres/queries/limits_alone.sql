-- Nobody hands slots of these limits on until the transaction ends. Limits share a bounded number
-- of such locks: a transaction may need very many limits, and the server has room for few locks.
SELECT pg_advisory_xact_lock(7453127, bucket)
FROM (SELECT DISTINCT mod(id, 256)::int AS bucket FROM unnest($1::bigint[]) AS one (id)
      ORDER BY bucket) AS ordered
