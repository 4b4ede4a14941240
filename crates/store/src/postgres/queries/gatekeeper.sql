-- One transaction at a time brings arrivals to the gate, so that the steps of a workflow pass
-- in their order. Nobody waits for it: who does not get it leaves the arrivals to who has it.
SELECT pg_try_advisory_xact_lock(7453126, 2) AS is_gatekeeper
