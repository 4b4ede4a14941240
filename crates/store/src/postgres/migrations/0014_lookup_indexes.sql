-- Online: programs of the version before run the same statements, by other indexes.
--
-- A table that was empty when it was analysed has one row as far as the planner knows, so every index
-- that contains a column costs the same for a lookup by that column, also an index in which the column is
-- not the first and which is therefore read from end to end. Among indexes of the same cost the planner
-- takes the newest. Statements that look up leases by token used the index (expires_at, token), and
-- statements that look up tasks in `scheduled`, `ready` and `running` used the indexes of their order.
--
-- The expiry index loses the column by which leases are looked up. The order of tasks needs the task as
-- the last column of its indexes, so there the primary key becomes the newest index instead.
--
-- The tables are locked once and together, in the lock order. Nothing is claimed while the two or three
-- indexes are built: half a second for each million tasks that are scheduled or ready.
LOCK TABLE tidegate.scheduled, tidegate.ready, tidegate.running, tidegate.leases IN ACCESS EXCLUSIVE MODE;
DROP INDEX tidegate.leases_expires_at;
CREATE INDEX leases_expiry ON tidegate.leases (expires_at);
ALTER TABLE tidegate.scheduled DROP CONSTRAINT scheduled_pkey, ADD PRIMARY KEY (task);
ALTER TABLE tidegate.ready DROP CONSTRAINT ready_pkey, ADD PRIMARY KEY (task);
ALTER TABLE tidegate.running DROP CONSTRAINT running_pkey, ADD PRIMARY KEY (task);
