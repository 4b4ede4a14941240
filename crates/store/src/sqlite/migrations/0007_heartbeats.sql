-- Online: programs of the version before leave the columns alone.
-- The last heartbeat of a worker: its time plus its lease length, and this length. Claims write neither.
-- Until the worker sends a heartbeat both are null, and the reaper ends its expired leases.
alter table worker add column heartbeat_until integer;
alter table worker add column heartbeat_lease_ms integer;
