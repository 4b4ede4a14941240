-- Taken by whoever begins a limit: it adopts what runs, so nothing may start meanwhile.
SELECT pg_advisory_xact_lock(7453126, 1)
