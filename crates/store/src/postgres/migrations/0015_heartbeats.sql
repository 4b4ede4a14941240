-- Online: programs of the version before leave the columns alone.
-- The last heartbeat of a worker: its time plus its lease length, and this length. Claims write neither.
-- Until the worker sends a heartbeat both are null, and the reaper ends its expired leases.
ALTER TABLE tidegate.workers ADD COLUMN heartbeat_until bigint, ADD COLUMN heartbeat_lease_ms bigint;
