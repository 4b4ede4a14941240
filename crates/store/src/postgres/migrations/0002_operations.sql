-- What an operator says and sees: paused queues, how often a limit stopped a task, how long tasks
-- run, and the attempts whose slots were taken away.

ALTER TABLE tidegate.limits ADD COLUMN refused bigint NOT NULL DEFAULT 0;

CREATE TABLE tidegate.queues (
    name      text COLLATE "C" PRIMARY KEY,
    paused_at bigint NOT NULL
);

-- How long the latest tasks of a group ran. Workers report it with their heartbeats, so no task
-- pays for it.
CREATE TABLE tidegate.paces (
    group_name text COLLATE "C" PRIMARY KEY,
    tasks      bigint NOT NULL,
    total_ms   bigint NOT NULL,
    heard_at   bigint NOT NULL
);

-- Attempts that were taken off running behind their worker's back: its next heartbeat is told.
CREATE TABLE tidegate.fenced (
    token bigint NOT NULL,
    task  bigint NOT NULL,
    PRIMARY KEY (token, task)
);

CREATE INDEX tasks_workflow ON tidegate.tasks (workflow) WHERE workflow IS NOT NULL;
