-- Tasks, the places they stand in, limits and leases.
--
-- Every place is a table of its own: claim reads `ready` and nothing else, and a blocked
-- task is in no index that a claim reads. There are no foreign keys: they would take locks
-- outside the one lock order.

CREATE SEQUENCE tidegate.task_ids;
-- Fencing tokens: ascending over the whole store, never given twice.
CREATE SEQUENCE tidegate.tokens;
-- Places in line: given under the lock of the line's limit, so they follow its order.
CREATE SEQUENCE tidegate.places;

CREATE TABLE tidegate.counters (
    only_row       boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    virtual_time   bigint NOT NULL,
    limits_version bigint NOT NULL
);
INSERT INTO tidegate.counters VALUES (true, 0, 0);

CREATE TABLE tidegate.kinds (
    name                     text COLLATE "C" PRIMARY KEY,
    queue                    text COLLATE "C" NOT NULL,
    max_attempts             bigint NOT NULL,
    timeout_ms               bigint,
    window_start_ms          bigint,
    window_end_ms            bigint,
    backoff_base_ms          bigint NOT NULL,
    backoff_cap_ms           bigint NOT NULL,
    remove_on_completed_days bigint,
    remove_on_failed_days    bigint,
    max_deaths               bigint NOT NULL
);

CREATE TABLE tidegate.lanes (
    id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    kind  text COLLATE "C" NOT NULL,
    UNIQUE (queue, kind)
);

CREATE TABLE tidegate.workers (
    id          text COLLATE "C" PRIMARY KEY,
    alive_until bigint NOT NULL
);

CREATE TABLE tidegate.worker_lanes (
    worker       text COLLATE "C" NOT NULL,
    lane         bigint NOT NULL,
    served_until bigint NOT NULL,
    PRIMARY KEY (worker, lane)
);

-- A limit's row is its lock: its line, its slots and its numbers change only under it.
CREATE TABLE tidegate.limits (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text COLLATE "C" NOT NULL UNIQUE,
    capacity      bigint,
    source        integer NOT NULL,
    base_capacity bigint,
    base_source   integer,
    version       bigint NOT NULL,
    since         bigint NOT NULL,
    held          bigint NOT NULL,
    waiting       bigint NOT NULL,
    aside         bigint NOT NULL,
    reserver      bigint,
    dirty         boolean NOT NULL,
    share_weight  bigint,
    last_tag      bigint NOT NULL,
    ahead         bigint NOT NULL,
    -- Of a job: some wait, and as many are ahead as its window takes.
    window_full   boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);
CREATE INDEX limits_dirty ON tidegate.limits (id) WHERE dirty;
CREATE INDEX limits_unset ON tidegate.limits (id) WHERE source = 0;

-- Tasks of jobs that were claimed and that `ahead` still counts. A claim adds a row and waits for
-- nobody; whoever has the limit's lock next takes it off.
CREATE TABLE tidegate.passes (
    limit_id bigint NOT NULL,
    tasks    bigint NOT NULL,
    -- The window was full when they were claimed: the next may pass.
    urgent   boolean NOT NULL
);
CREATE INDEX passes_limit ON tidegate.passes (limit_id);
CREATE INDEX passes_urgent ON tidegate.passes (limit_id) WHERE urgent;

-- The evidence of who holds what.
CREATE TABLE tidegate.slots (
    limit_id bigint NOT NULL,
    number   bigint NOT NULL,
    task     bigint NOT NULL,
    PRIMARY KEY (limit_id, number)
);
CREATE INDEX slots_task ON tidegate.slots (task);

-- What a task is. `state` is set when it is finished for good. Texts of handlers are kept
-- as bytes, because PostgreSQL's text cannot hold a NUL.
CREATE TABLE tidegate.tasks (
    id           bigint PRIMARY KEY,
    lane         bigint NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    group_name   text COLLATE "C",
    job          text COLLATE "C",
    workflow     text COLLATE "C",
    unique_key   text COLLATE "C",
    weight       bigint NOT NULL,
    priority     integer NOT NULL,
    max_attempts bigint,
    timeout_ms   bigint,
    spent        bigint NOT NULL DEFAULT 0,
    deaths       bigint NOT NULL DEFAULT 0,
    arrival      bigint NOT NULL,
    created_at   bigint NOT NULL,
    payload      bytea NOT NULL,
    error        bytea,
    state        integer,
    result       bytea,
    finished_at  bigint,
    remove_at    bigint
);
CREATE INDEX tasks_remove_at ON tidegate.tasks (remove_at, id) WHERE remove_at IS NOT NULL;
CREATE INDEX tasks_job ON tidegate.tasks (job) WHERE job IS NOT NULL;

CREATE TABLE tidegate.unique_keys (
    key  text COLLATE "C" PRIMARY KEY,
    task bigint
);

CREATE TABLE tidegate.scheduled (
    task   bigint PRIMARY KEY,
    run_at bigint NOT NULL
);
CREATE INDEX scheduled_run_at ON tidegate.scheduled (run_at, task);

CREATE TABLE tidegate.arrived (
    task bigint PRIMARY KEY
);

CREATE TABLE tidegate.ready (
    task  bigint PRIMARY KEY,
    lane  bigint NOT NULL,
    rank  bigint NOT NULL,
    tag   bigint NOT NULL,
    stamp bigint NOT NULL,
    gated boolean NOT NULL,
    since bigint NOT NULL
);
CREATE INDEX ready_order ON tidegate.ready (lane, rank, tag, task);
CREATE INDEX ready_gated ON tidegate.ready (since) WHERE gated;

CREATE TABLE tidegate.line (
    task     bigint PRIMARY KEY,
    limit_id bigint NOT NULL,
    class    integer NOT NULL,
    rank     bigint NOT NULL,
    tag      bigint NOT NULL,
    place    bigint NOT NULL,
    lane     bigint NOT NULL,
    moves    bigint NOT NULL,
    passed   boolean NOT NULL,
    since    bigint NOT NULL
);
CREATE INDEX line_order ON tidegate.line (limit_id, class, rank, tag, place);
CREATE INDEX line_no_worker ON tidegate.line (lane, limit_id, rank, tag, place) WHERE class = 4;

CREATE TABLE tidegate.leases (
    token      bigint PRIMARY KEY,
    worker     text COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX leases_expires_at ON tidegate.leases (expires_at, token);

CREATE TABLE tidegate.running (
    task       bigint PRIMARY KEY,
    token      bigint NOT NULL,
    gated      boolean NOT NULL,
    cancel     boolean NOT NULL DEFAULT false,
    started_at bigint NOT NULL,
    percent    integer,
    message    bytea
);
CREATE INDEX running_token ON tidegate.running (token, task);

-- The state of every task, for those who count. An unfinished task's is the place it stands in.
CREATE VIEW tidegate.states AS
SELECT t.id, t.job,
       CASE WHEN t.state IS NOT NULL THEN t.state
            WHEN s.task IS NOT NULL THEN 0
            WHEN l.task IS NOT NULL THEN 2
            WHEN u.task IS NOT NULL THEN 3
            ELSE 1 END AS state
FROM tidegate.tasks t
LEFT JOIN tidegate.scheduled s ON s.task = t.id
LEFT JOIN tidegate.line l ON l.task = t.id
LEFT JOIN tidegate.running u ON u.task = t.id;
