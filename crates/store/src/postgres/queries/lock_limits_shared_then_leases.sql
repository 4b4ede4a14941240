-- The same as `lock_leases_for_finish.sql` for whoever hands slots on. Between the two, the limits $2 are
-- shared, and stay as they are.
WITH version AS MATERIALIZED (
    SELECT pg_advisory_xact_lock_shared(7453126, 1)
), shared AS MATERIALIZED (
    SELECT pg_advisory_xact_lock_shared(7453127, bucket) FROM unnest($2::integer[]) AS bucket
    WHERE (SELECT count(*) FROM version) = 1
)
SELECT token FROM tidegate.leases
WHERE token = ANY ($1) AND (SELECT count(*) FROM shared) >= 0
ORDER BY token FOR UPDATE
