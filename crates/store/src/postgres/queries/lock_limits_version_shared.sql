-- Held by a claim to its end: no limit begins between its look at the limits and its commit.
SELECT pg_advisory_xact_lock_shared(7453126, 1)
