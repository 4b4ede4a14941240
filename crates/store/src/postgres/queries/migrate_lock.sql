-- One migration at a time, over all processes; released with the transaction.
SELECT pg_advisory_xact_lock(7453126, 0)
