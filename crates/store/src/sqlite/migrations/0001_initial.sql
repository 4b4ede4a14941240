-- A task stands in exactly one of scheduled, arrived, ready, line and running, or its state is
-- final. Each place is a table of its own: claim reads ready and nothing else, and no row is
-- marked twice. Words are kept as words, so that the file can be read with any SQLite shell.

-- The numbers the store counts up. They are kept here and not taken from the largest row, so
-- that an id is never given twice, also after its row is gone.
create table meta (
    id integer primary key check (id = 1),
    last_task integer not null,
    last_limit integer not null,
    token integer not null,
    place integer not null,
    virtual_time integer not null,
    limits_version integer not null,
    -- Counts the steps that made something claimable: other processes wake for these alone.
    news integer not null
) strict;

insert into meta values (1, 0, 0, 0, 0, 0, 0, 0);

create table kind (
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
    max_deaths integer not null,
    -- When a worker last registered a kind that nobody else made known; null where somebody did.
    seen_at integer
) strict, without rowid;

create table lane (
    id integer primary key,
    queue text not null,
    kind text not null,
    unique (queue, kind)
) strict;

create table worker (
    id text not null primary key,
    alive_until integer not null,
    -- The version of the schema that the worker's program knows.
    schema_version integer,
    -- What a worker last said of itself, as JSON.
    report text,
    -- The last heartbeat of a worker: its time plus its lease length, and this length. Claims write neither.
    -- Until the worker sends a heartbeat both are null, and the reaper ends its expired leases.
    heartbeat_until integer,
    heartbeat_lease_ms integer
) strict, without rowid;

create table worker_lane (
    lane integer not null,
    worker text not null,
    served_until integer not null,
    primary key (lane, worker)
) strict, without rowid;

-- held, waiting, aside and ahead are kept for speed and change with the rows they count.
create table limits (
    id integer primary key,
    name text not null unique,
    capacity integer,
    source text not null,
    base_capacity integer,
    base_source text,
    version integer not null,
    since integer not null,
    held integer not null,
    waiting integer not null,
    aside integer not null,
    reserver integer,
    dirty integer not null,
    share_weight integer,
    share_last_tag integer,
    share_ahead integer,
    refused integer not null default 0,
    -- A limit that nobody passes, whatever its capacity: 0 by an operator's word, else the step of the
    -- workflow that failed.
    halt integer,
    -- When its line is to be looked at.
    look_at integer,
    -- A job's reserve, its priority, and the time between two starts.
    share_min_concurrency integer not null default 0,
    share_priority integer not null default 0,
    share_delay_ms integer not null default 0,
    share_next_at integer not null default 0
) strict;

create index limits_dirty on limits (id) where dirty = 1;
create index limits_look_at on limits (look_at) where look_at is not null;
create index limits_halted on limits (name) where halt is not null;
create index limits_idle on limits (id)
where source = 'unset' and held = 0 and waiting = 0 and halt is null;

-- A freed slot keeps its row, so the numbers of a limit are 0 to n-1 without a gap, the lowest
-- free one is the first row of slot_free, and the next new one is n.
create table slot (
    limit_id integer not null,
    number integer not null,
    task integer,
    primary key (limit_id, number)
) strict, without rowid;

create index slot_free on slot (limit_id, number) where task is null;
create index slot_held on slot (task, limit_id, number) where task is not null;

-- payload and result come last: whoever needs the other columns does not read through them.
-- ready_rank and ready_tag are the key of the ready row that submit makes, so that most ready
-- tasks are found by id without an index that every claim would pay for.
create table task (
    id integer primary key,
    lane integer not null,
    state text,
    priority integer not null,
    weight integer not null,
    spent integer not null,
    deaths integer not null,
    max_attempts integer,
    timeout_ms integer,
    ready_rank integer not null,
    ready_tag integer not null,
    arrival integer not null,
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

create unique index task_unique on task (unique_key) where unique_key is not null and state is null;
create index task_final on task (state) where state is not null;
create index task_removal on task (remove_at) where remove_at is not null;
create index task_job on task (job, state) where job is not null;
create index task_workflow on task (workflow, state) where workflow is not null;

create table scheduled (
    task integer primary key,
    run_at integer not null
) strict;

create index scheduled_due on scheduled (run_at, task);

create table arrived (
    task integer primary key,
    -- The job whose share brings a task to the gate; none where it has none or is a step of a workflow.
    job text
) strict;

create index arrived_job on arrived (job, task) where job is not null;

-- at_submit: its key stands in the task's row, see there.
create table ready (
    lane integer not null,
    rank integer not null,
    tag integer not null,
    task integer not null,
    stamp integer not null,
    gated integer not null,
    at_submit integer not null,
    since integer not null,
    primary key (lane, rank, tag, task)
) strict, without rowid;

create index ready_by_task on ready (task) where at_submit = 0;
create index ready_gated on ready (lane, rank, tag, task, since) where gated = 1;

create table line (
    limit_id integer not null,
    class integer not null,
    rank integer not null,
    tag integer not null,
    place integer not null,
    task integer not null,
    lane integer not null,
    moves integer not null,
    passed integer not null,
    since integer not null,
    primary key (limit_id, class, rank, tag, place)
) strict, without rowid;

create unique index line_by_task on line (task);
create index line_no_worker on line (lane, limit_id, rank, tag, place) where class = 4;

create table lease (
    token integer primary key,
    worker text not null,
    expires_at integer not null
) strict;

create index lease_expiry on lease (expires_at, token);

-- No index by task: every claim and every finish would pay for it, and only a few attempts run.
create table running (
    token integer not null,
    task integer not null,
    gated integer not null,
    cancel integer not null,
    started_at integer not null,
    progress_percent integer,
    progress_message text,
    -- When its task was through the gate.
    ready_at integer not null default 0,
    primary key (token, task)
) strict, without rowid;

-- Paused queues.
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

-- What live workers say of groups: the capacity a worker brings, or null where it registers the kind
-- and brings none. The latest of those that bring one counts.
create table registration (
    number integer primary key,
    worker text not null,
    group_name text not null,
    capacity integer,
    unique (worker, group_name)
) strict;

create index registration_group on registration (group_name, number);
