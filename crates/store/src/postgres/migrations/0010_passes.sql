-- When somebody should look whether a slot is free and a task waits for it all the same: its last
-- holder found only tasks that others were about to take. They have nearly always taken them by then.
ALTER TABLE tidegate.passes ADD COLUMN look_at bigint;
CREATE INDEX passes_look_at ON tidegate.passes (look_at) WHERE look_at IS NOT NULL;

-- A connection has one row for what it does at a limit without its lock, and makes it or adds to it in
-- one step.
CREATE UNIQUE INDEX passes_limit_backend ON tidegate.passes (limit_id, backend);
DROP INDEX tidegate.passes_limit;
