-- A task stands in exactly one of scheduled, inbox, ready, waiters and running, or its state is
-- final. Each place is a table of its own: claim reads ready and nothing else, and no row is
-- marked twice. Words are kept as words, so that the file can be read with any SQLite shell.

-- The numbers the store counts up. They are kept here and not taken from the largest row, so
-- that an id is never given twice, also after its row is gone.
create table counters (
    id integer primary key check (id = 1),
    last_task_id integer not null,
    last_limit_id integer not null,
    last_token integer not null,
    last_admission_seq integer not null,
    virtual_time integer not null,
    limits_version integer not null,
    -- Counts the steps that made something claimable: other processes wake for these alone.
    notifications integer not null
) strict;

insert into counters values (1, 0, 0, 0, 0, 0, 0, 0);

create table kinds (
    name text not null primary key,
    queue text not null,
    max_attempts integer not null,
    timeout_ms integer,
    window_start_ms integer,
    window_end_ms integer,
    backoff_base_ms integer not null,
    backoff_cap_ms integer not null,
    remove_on_completed_days integer,
    remove_on_failed_days integer,
    max_crashes integer not null,
    -- When a worker last registered a kind that nobody else made known; null where somebody did.
    registered_at integer
) strict, without rowid;

create table lanes (
    id integer primary key,
    queue text not null,
    kind text not null,
    unique (queue, kind)
) strict;

create table workers (
    id text not null primary key,
    alive_until integer not null,
    -- The version of the schema that the worker's program knows.
    schema_version integer,
    -- What a worker last said of itself, as JSON.
    report text,
    -- The last heartbeat of a worker: its time plus its lease length, and this length. Claims write neither.
    -- Until the worker sends a heartbeat both are null, and the reaper ends its expired leases.
    heartbeat_expires_at integer,
    heartbeat_lease_ms integer
) strict, without rowid;

create table worker_lanes (
    lane integer not null,
    worker text not null,
    served_until integer not null,
    primary key (lane, worker)
) strict, without rowid;

-- held, waiting, skipped and in_window are kept for speed and change with the rows they count.
create table limits (
    id integer primary key,
    name text not null unique,
    capacity integer,
    source text not null,
    base_capacity integer,
    base_source text,
    version integer not null,
    applies_from_version integer not null,
    held integer not null,
    waiting integer not null,
    skipped integer not null,
    reserving_task integer,
    dirty integer not null,
    share_weight integer,
    last_tag integer,
    in_window integer,
    parked_total integer not null default 0,
    -- A limit that nobody passes, whatever its capacity: 0 by an operator's word, else the step of the
    -- workflow that failed.
    paused_by integer,
    -- When its line is to be looked at.
    recheck_at integer,
    -- A job's reserve, its priority, and the time between two starts.
    min_concurrency integer not null default 0,
    priority integer not null default 0,
    delay_ms integer not null default 0,
    next_start_at integer not null default 0
) strict;

create index limits_dirty on limits (id) where dirty = 1;
create index limits_recheck_at on limits (recheck_at) where recheck_at is not null;
create index limits_paused on limits (name) where paused_by is not null;
create index limits_idle on limits (id)
where source = 'unset' and held = 0 and waiting = 0 and paused_by is null;

-- A freed slot keeps its row, so the numbers of a limit are 0 to n-1 without a gap, the lowest
-- free one is the first row of slots_free, and the next new one is n.
create table slots (
    limit_id integer not null,
    number integer not null,
    task integer,
    primary key (limit_id, number)
) strict, without rowid;

create index slots_free on slots (limit_id, number) where task is null;
create index slots_held on slots (task, limit_id, number) where task is not null;

-- payload and result come last: whoever needs the other columns does not read through them.
-- submit_rank and submit_tag are the key of the ready row that submit makes, so that most ready
-- tasks are found by id without an index that every claim would pay for.
create table tasks (
    id integer primary key,
    lane integer not null,
    state text,
    priority integer not null,
    weight integer not null,
    attempts_used integer not null,
    crashes integer not null,
    max_attempts integer,
    timeout_ms integer,
    submit_rank integer not null,
    submit_tag integer not null,
    due_at integer not null,
    created_at integer not null,
    finished_at integer,
    remove_at integer,
    group_name text,
    job text,
    workflow text,
    unique_key text,
    error text,
    payload blob not null,
    result blob,
    -- What a failed step does to its workflow.
    on_failure text not null default 'halt',
    -- Where it was submitted.
    trace text
) strict;

create unique index tasks_unique_key on tasks (unique_key) where unique_key is not null and state is null;
create index tasks_finished on tasks (state) where state is not null;
create index tasks_remove_at on tasks (remove_at) where remove_at is not null;
create index tasks_job on tasks (job, state) where job is not null;
create index tasks_workflow on tasks (workflow, state) where workflow is not null;

create table scheduled (
    task integer primary key,
    run_at integer not null
) strict;

create index scheduled_run_at on scheduled (run_at, task);

create table inbox (
    task integer primary key,
    -- The job whose share brings a task to the gate; none where it has none or is a step of a workflow.
    job text
) strict;

create index inbox_job on inbox (job, task) where job is not null;

-- has_submit_key: its key stands in the task's row, see there.
create table ready (
    lane integer not null,
    rank integer not null,
    tag integer not null,
    task integer not null,
    limits_version integer not null,
    holds_slots integer not null,
    has_submit_key integer not null,
    ready_at integer not null,
    primary key (lane, rank, tag, task)
) strict, without rowid;

create index ready_by_task on ready (task) where has_submit_key = 0;
create index ready_holds_slots on ready (lane, rank, tag, task, ready_at) where holds_slots = 1;

create table waiters (
    limit_id integer not null,
    wait_reason integer not null,
    rank integer not null,
    tag integer not null,
    admission_seq integer not null,
    task integer not null,
    lane integer not null,
    queue_switches integer not null,
    in_job_window integer not null,
    due_at integer not null,
    primary key (limit_id, wait_reason, rank, tag, admission_seq)
) strict, without rowid;

create unique index waiters_task on waiters (task);
create index waiters_no_worker on waiters (lane, limit_id, rank, tag, admission_seq) where wait_reason = 4;

create table leases (
    token integer primary key,
    worker text not null,
    expires_at integer not null
) strict;

create index leases_expires_at on leases (expires_at, token);

-- No index by task: every claim and every finish would pay for it, and only a few attempts run.
create table running (
    token integer not null,
    task integer not null,
    holds_slots integer not null,
    cancel_requested integer not null,
    started_at integer not null,
    progress_percent integer,
    progress_message text,
    -- When its task was through the gate.
    ready_at integer not null default 0,
    primary key (token, task)
) strict, without rowid;

-- Paused queues.
create table paused_queues (
    name text not null primary key,
    paused_at integer not null
) strict, without rowid;

-- How long the latest tasks of a group ran. Workers report it with their heartbeats, so no task
-- pays for it.
create table run_times (
    group_name text not null primary key,
    tasks integer not null,
    total_ms integer not null,
    updated_at integer not null
) strict, without rowid;

-- Attempts that were taken off running behind their worker's back: its next heartbeat is told.
create table fenced_attempts (
    token integer not null,
    task integer not null,
    primary key (token, task)
) strict, without rowid;

-- What live workers say of groups: the capacity a worker brings, or null where it registers the kind
-- and brings none. The latest of those that bring one counts.
create table registrations (
    seq integer primary key,
    worker text not null,
    group_name text not null,
    capacity integer,
    unique (worker, group_name)
) strict;

create index registrations_group on registrations (group_name, seq);
