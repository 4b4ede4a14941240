-- One transaction at a time brings arrivals to the gate, so that the steps of a workflow pass
-- in their order. No transaction waits for it: one that does not get the lock leaves the arrivals to the
-- transaction that has it.
--
-- With the counters and the time ($1, if it is not the server's), which are read before any limit's name
-- is looked up: a `limits_version` must never be newer than what its bearer knew of the limits. The statements that
-- read arrivals are sent together with this one. They find the time in `tidegate.admission_time`, or nothing
-- where another transaction has the lock.
SELECT c.virtual_time, c.limits_version, moment.now, gate.is_gatekeeper,
       set_config('tidegate.admission_time', CASE WHEN gate.is_gatekeeper THEN moment.now::text ELSE '' END,
                  true)
FROM tidegate.counters c
CROSS JOIN (SELECT pg_try_advisory_xact_lock(7453126, 2) AS is_gatekeeper OFFSET 0) AS gate
CROSS JOIN (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now OFFSET 0
) AS moment
