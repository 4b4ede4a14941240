-- What whoever ends attempts without slots under the leases $1 holds to the end, in the one order of
-- locks: the version of the limits is shared, and then the leases are its own.
WITH version AS MATERIALIZED (
    SELECT pg_advisory_xact_lock_shared(7453126, 1)
)
SELECT token FROM tidegate.leases
WHERE token = ANY ($1) AND (SELECT count(*) FROM version) = 1
ORDER BY token FOR UPDATE
