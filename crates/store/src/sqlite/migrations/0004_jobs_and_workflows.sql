-- What a failed step does to its workflow, and where a task was submitted.
alter table task add column on_failure text not null default 'halt';
alter table task add column trace text;

-- When an attempt's task was through the gate.
alter table running add column ready_at integer not null default 0;

-- A limit that nobody passes, whatever its capacity: 0 by an operator's word, else the step of the
-- workflow that failed. And when its line is to be looked at.
alter table limits add column halt integer;
alter table limits add column look_at integer;

-- A job's reserve, its priority, and the time between two starts.
alter table limits add column share_min_concurrency integer not null default 0;
alter table limits add column share_priority integer not null default 0;
alter table limits add column share_delay_ms integer not null default 0;
alter table limits add column share_next_at integer not null default 0;

create index limits_look_at on limits (look_at) where look_at is not null;
create index limits_halted on limits (name) where halt is not null;
drop index limits_idle;
create index limits_idle on limits (id)
where source = 'unset' and held = 0 and waiting = 0 and halt is null;
