-- A heartbeat with a lease of ?3 ms, so the worker lives until ?2. A report replaces the one before.
insert into workers (id, alive_until, heartbeat_expires_at, heartbeat_lease_ms, report) values (?1, ?2, ?2, ?3, ?4)
on conflict (id) do update
set alive_until = excluded.alive_until, heartbeat_expires_at = excluded.heartbeat_expires_at,
    heartbeat_lease_ms = excluded.heartbeat_lease_ms, report = coalesce(excluded.report, report)
