-- What an operator says and sees: paused queues, how often a limit stopped a task, how long tasks
-- run, and the attempts whose slots were taken away.

alter table limits add column refused integer not null default 0;

create table queue (
    name text not null primary key,
    paused_at integer not null
) strict, without rowid;

-- How long the latest tasks of a group ran. Workers report it with their heartbeats, so no task
-- pays for it.
create table pace (
    group_name text not null primary key,
    tasks integer not null,
    total_ms integer not null,
    heard_at integer not null
) strict, without rowid;

-- Attempts that were taken off running behind their worker's back: its next heartbeat is told.
create table fenced (
    token integer not null,
    task integer not null,
    primary key (token, task)
) strict, without rowid;

create index task_workflow on task (workflow, state) where workflow is not null;
