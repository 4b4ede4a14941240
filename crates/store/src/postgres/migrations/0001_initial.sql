-- Tasks, the places they stand in, limits and leases.
--
-- Every place is a table of its own: claim reads `ready` and nothing else, and a blocked
-- task is in no index that a claim reads. There are no foreign keys: they would take locks
-- outside the one lock order.
--
-- Rows of these tables live for as long as a task waits or runs, so they are mostly dead ones. By
-- default a table is cleaned when a fifth of it is dead: at a million tasks that wait, after 200,000
-- that ran. Here it is a number of rows, and the cleaning does not pause to spare others: it is small
-- because it is often.
--
-- A table that was empty when it was analysed has one row as far as the planner knows, so every index
-- that contains a column costs the same for a lookup by that column, also an index in which the column is
-- not the first and which is therefore read from end to end. Among indexes of the same cost the planner
-- takes the newest. So the primary keys of `scheduled`, `ready` and `running` are made after the indexes of
-- their order, which need the task as their last column, and the expiry index of `leases` lacks the column by
-- which leases are looked up.
CREATE SEQUENCE tidegate.task_ids;
-- Fencing tokens: ascending over the whole store, never given twice.
CREATE SEQUENCE tidegate.tokens;
-- Places in line: given under the lock of the line's limit, so they follow its order.
CREATE SEQUENCE tidegate.admission_seqs;

CREATE TABLE tidegate.counters (
    only_row       boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    virtual_time   bigint NOT NULL,
    limits_version bigint NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
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
    max_crashes              bigint NOT NULL,
    -- When a worker last registered a kind that nobody else made known; NULL where somebody did.
    registered_at            bigint
);

CREATE TABLE tidegate.lanes (
    id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    kind  text COLLATE "C" NOT NULL,
    UNIQUE (queue, kind)
);

CREATE TABLE tidegate.workers (
    id                   text COLLATE "C" PRIMARY KEY,
    alive_until          bigint NOT NULL,
    -- The version of the schema that the worker's program knows.
    schema_version       bigint,
    -- What a worker last said of itself.
    report               jsonb,
    -- The last heartbeat of a worker: its time plus its lease length, and this length. Claims write neither.
    -- Until the worker sends a heartbeat both are null, and the reaper ends its expired leases.
    heartbeat_expires_at bigint,
    heartbeat_lease_ms   bigint
);

CREATE TABLE tidegate.worker_lanes (
    worker       text COLLATE "C" NOT NULL,
    lane         bigint NOT NULL,
    served_until bigint NOT NULL,
    PRIMARY KEY (worker, lane)
);

-- A limit's row is its lock: its line and its numbers change only under it.
CREATE TABLE tidegate.limits (
    id                   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                 text COLLATE "C" NOT NULL UNIQUE,
    capacity             bigint,
    source               integer NOT NULL,
    base_capacity        bigint,
    base_source          integer,
    version              bigint NOT NULL,
    applies_from_version bigint NOT NULL,
    waiting              bigint NOT NULL,
    skipped              bigint NOT NULL,
    reserving_task       bigint,
    dirty                boolean NOT NULL,
    share_weight         bigint,
    last_tag             bigint NOT NULL,
    in_window            bigint NOT NULL,
    -- Of a job: some wait, and as many are ahead as its window takes.
    window_full          boolean NOT NULL DEFAULT false,
    -- How often it stopped a task.
    parked_total         bigint NOT NULL DEFAULT 0,
    -- Whether slots may change hands without the lock of the limit's row: nobody is set aside who might
    -- come back, and no number is held that the capacity has not.
    allows_hand_off      boolean NOT NULL DEFAULT false,
    -- A limit that nobody passes, whatever its capacity: 0 by an operator's word, else the step of the
    -- workflow that failed.
    paused_by            bigint,
    -- When its line is to be looked at.
    recheck_at           bigint,
    -- A job's reserve, its priority, and the time between two starts.
    min_concurrency      bigint NOT NULL DEFAULT 0,
    priority             integer NOT NULL DEFAULT 0,
    delay_ms             bigint NOT NULL DEFAULT 0,
    next_start_at        bigint NOT NULL DEFAULT 0
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX limits_dirty ON tidegate.limits (id) WHERE dirty;
CREATE INDEX limits_unset ON tidegate.limits (id) WHERE source = 0;
CREATE INDEX limits_recheck_at ON tidegate.limits (recheck_at) WHERE recheck_at IS NOT NULL;

-- What happened at a limit without its lock: the tasks of a job that were claimed and that `in_window`
-- still counts, the slots that were given back, and the tasks that left its line. A connection has one row for what
-- it does at a limit without its lock, and makes it or adds to it in one step, so nobody waits for another;
-- whoever has the limit's lock next takes it off.
CREATE TABLE tidegate.limit_deltas (
    limit_id      bigint NOT NULL,
    claimed_tasks bigint NOT NULL,
    -- The window was full when they were claimed: the next may pass.
    needs_drain   boolean NOT NULL,
    dequeued      bigint NOT NULL DEFAULT 0,
    backend_pid   integer,
    -- Slots that were given back, by their numbers.
    freed_slots   integer[] NOT NULL DEFAULT '{}',
    -- When somebody should look whether a slot is free and a task waits for it all the same: its last
    -- holder found only tasks that others were about to take. They have nearly always taken them by then.
    recheck_at    bigint,
    -- When the tasks of a job that were claimed without its limit's lock began.
    started_at    bigint
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, fillfactor = 50);
CREATE INDEX limit_deltas_needs_drain ON tidegate.limit_deltas (limit_id) WHERE needs_drain;
CREATE INDEX limit_deltas_recheck_at ON tidegate.limit_deltas (recheck_at) WHERE recheck_at IS NOT NULL;
CREATE UNIQUE INDEX limit_deltas_limit_backend ON tidegate.limit_deltas (limit_id, backend_pid);

-- The evidence of who holds what.
CREATE TABLE tidegate.slots (
    limit_id bigint NOT NULL,
    number   bigint NOT NULL,
    task     bigint NOT NULL,
    PRIMARY KEY (limit_id, number)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX slots_task ON tidegate.slots (task);

-- Which slots of a limit are taken stands in at most 50 rows, however many there are: whoever has the
-- limit's lock knows by them what is free, and does not read one row for each holder. Slot n is of group
-- n mod 50, so a slot keeps its group whatever becomes of the capacity. Who holds a slot is in `slots`,
-- or in the lease that lists it.
CREATE TABLE tidegate.slot_groups (
    limit_id bigint NOT NULL,
    number   integer NOT NULL,
    -- Its part of the limit's: all together are exactly that. 0 where only slots are left that the
    -- capacity has no more, and NULL where there is no limit.
    capacity bigint,
    -- The numbers of the slots that are taken.
    taken    integer[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (limit_id, number)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);

-- What an unfinished task is. Texts of handlers are kept as bytes, because PostgreSQL's text cannot hold a
-- NUL.
CREATE TABLE tidegate.tasks (
    id            bigint PRIMARY KEY,
    lane          bigint NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    group_name    text COLLATE "C",
    job           text COLLATE "C",
    workflow      text COLLATE "C",
    unique_key    text COLLATE "C",
    weight        bigint NOT NULL,
    priority      integer NOT NULL,
    max_attempts  bigint,
    timeout_ms    bigint,
    attempts_used bigint NOT NULL DEFAULT 0,
    crashes       bigint NOT NULL DEFAULT 0,
    due_at        bigint NOT NULL,
    created_at    bigint NOT NULL,
    payload       bytea NOT NULL,
    error         bytea,
    -- What a failed step does to its workflow (0: it halts, 1: it goes on).
    on_failure    integer NOT NULL DEFAULT 0,
    -- Where it was submitted.
    trace         text COLLATE "C"
) WITH (
    autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_scale_factor = 0);
CREATE INDEX tasks_job ON tidegate.tasks (job) WHERE job IS NOT NULL;
CREATE INDEX tasks_workflow ON tidegate.tasks (workflow) WHERE workflow IS NOT NULL;

-- Finished tasks have a table of their own, so that the one that claims and finishes go through stays as
-- small as what is unfinished. It is cut by the day on which tasks are removed: removing a day's is dropping
-- its partition, and leaves nothing to clean up.
CREATE TABLE tidegate.finished (
    id            bigint NOT NULL,
    lane          bigint NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    group_name    text COLLATE "C",
    job           text COLLATE "C",
    workflow      text COLLATE "C",
    unique_key    text COLLATE "C",
    weight        bigint NOT NULL,
    priority      integer NOT NULL,
    max_attempts  bigint,
    timeout_ms    bigint,
    attempts_used bigint NOT NULL,
    crashes       bigint NOT NULL,
    due_at        bigint NOT NULL,
    created_at    bigint NOT NULL,
    payload       bytea NOT NULL,
    error         bytea,
    state         integer NOT NULL,
    result        bytea,
    finished_at   bigint NOT NULL,
    -- The day that begins when it is removed, counted from 1970-01-01 UTC; 2147483647 is never.
    remove_day    integer NOT NULL,
    on_failure    integer NOT NULL DEFAULT 0,
    trace         text COLLATE "C",
    PRIMARY KEY (id, remove_day)
) PARTITION BY RANGE (remove_day);
CREATE INDEX finished_job ON tidegate.finished (job) WHERE job IS NOT NULL;
CREATE INDEX finished_workflow ON tidegate.finished (workflow) WHERE workflow IS NOT NULL;

-- What is kept for ever.
CREATE TABLE tidegate.finished_forever PARTITION OF tidegate.finished
    FOR VALUES FROM (2147483647) TO (MAXVALUE);
-- What ends when its day has no partition: no keeper came by in time. It is removed row by row.
CREATE TABLE tidegate.finished_default PARTITION OF tidegate.finished DEFAULT;
CREATE INDEX finished_default_remove_day ON tidegate.finished_default (remove_day);

CREATE TABLE tidegate.unique_keys (
    key  text COLLATE "C" PRIMARY KEY,
    task bigint
);

CREATE TABLE tidegate.scheduled (
    task   bigint NOT NULL,
    run_at bigint NOT NULL
);
CREATE INDEX scheduled_run_at ON tidegate.scheduled (run_at, task);
ALTER TABLE tidegate.scheduled ADD PRIMARY KEY (task);

CREATE TABLE tidegate.inbox (
    task bigint PRIMARY KEY,
    -- The job whose share brings a task to the gate; none where it has none or is a step of a workflow.
    job  text COLLATE "C"
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX inbox_job ON tidegate.inbox (job, task) WHERE job IS NOT NULL;

CREATE TABLE tidegate.ready (
    task           bigint NOT NULL,
    lane           bigint NOT NULL,
    rank           bigint NOT NULL,
    tag            bigint NOT NULL,
    limits_version bigint NOT NULL,
    holds_slots    boolean NOT NULL,
    ready_at       bigint NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ready_order ON tidegate.ready (lane, rank, tag, task);
CREATE INDEX ready_holds_slots ON tidegate.ready (ready_at) WHERE holds_slots;
ALTER TABLE tidegate.ready ADD PRIMARY KEY (task);

CREATE TABLE tidegate.waiters (
    task           bigint PRIMARY KEY,
    limit_id       bigint NOT NULL,
    wait_reason    integer NOT NULL,
    rank           bigint NOT NULL,
    tag            bigint NOT NULL,
    admission_seq  bigint NOT NULL,
    lane           bigint NOT NULL,
    queue_switches bigint NOT NULL,
    in_job_window  boolean NOT NULL,
    due_at         bigint NOT NULL,
    -- Whether a task in line needs one slot of this limit and nothing else. Nobody passes one that needs
    -- more or collects its slots, so while such a task waits its limit is locked as ever.
    single_slot    boolean NOT NULL DEFAULT false
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX waiters_order ON tidegate.waiters (limit_id, wait_reason, rank, tag, admission_seq);
CREATE INDEX waiters_no_worker ON tidegate.waiters (lane, limit_id, rank, tag, admission_seq) WHERE wait_reason = 4;
CREATE INDEX waiters_not_single_slot ON tidegate.waiters (limit_id) WHERE NOT single_slot;

-- What runs and holds no slots, or one slot of one limit, needs no row of its own: its lease lists it. Whoever
-- has to know more of it than that it runs and ends well unpacks the lease first, into rows of `running`. The
-- first tasks of a lease are those with slots; `limits` and `numbers` say which, in the same order.
CREATE TABLE tidegate.leases (
    token      bigint PRIMARY KEY,
    worker     text COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL,
    started_at bigint NOT NULL DEFAULT 0,
    tasks      bigint[] NOT NULL DEFAULT '{}',
    limits     bigint[] NOT NULL DEFAULT '{}',
    numbers    bigint[] NOT NULL DEFAULT '{}'
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX leases_expires_at ON tidegate.leases (expires_at);

CREATE TABLE tidegate.running (
    task             bigint NOT NULL,
    token            bigint NOT NULL,
    holds_slots      boolean NOT NULL,
    cancel_requested boolean NOT NULL DEFAULT false,
    started_at       bigint NOT NULL,
    progress_percent integer,
    progress_message bytea
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX running_token ON tidegate.running (token, task);
ALTER TABLE tidegate.running ADD PRIMARY KEY (task);

-- Paused queues.
CREATE TABLE tidegate.paused_queues (
    name      text COLLATE "C" PRIMARY KEY,
    paused_at bigint NOT NULL
);

-- How long the latest tasks of a group ran. Workers report it with their heartbeats, so no task
-- pays for it.
CREATE TABLE tidegate.run_times (
    group_name text COLLATE "C" PRIMARY KEY,
    tasks      bigint NOT NULL,
    total_ms   bigint NOT NULL,
    updated_at bigint NOT NULL
);

-- Attempts that were taken off running behind their worker's back: its next heartbeat is told.
CREATE TABLE tidegate.fenced_attempts (
    token bigint NOT NULL,
    task  bigint NOT NULL,
    PRIMARY KEY (token, task)
);

-- What live workers say of groups: the capacity a worker brings, or NULL where it registers the kind
-- and brings none. The latest of those that bring one counts.
CREATE TABLE tidegate.registrations (
    worker     text COLLATE "C" NOT NULL,
    group_name text COLLATE "C" NOT NULL,
    -- Given under the lock of the group's limit, so the numbers follow its order.
    seq        bigint GENERATED ALWAYS AS IDENTITY,
    capacity   bigint,
    PRIMARY KEY (worker, group_name)
);
CREATE INDEX registrations_group ON tidegate.registrations (group_name, seq);

-- What is held, wherever that is written.
CREATE VIEW tidegate.held_slots AS
SELECT limit_id, number, task FROM tidegate.slots
UNION ALL
SELECT packed.limit_id, packed.number, packed.task
FROM tidegate.leases l
CROSS JOIN LATERAL unnest(l.limits, l.numbers, l.tasks[1:cardinality(l.limits)])
     AS packed (limit_id, number, task);

-- What runs, wherever that is written.
CREATE VIEW tidegate.running_attempts AS
SELECT task, token, holds_slots, cancel_requested, started_at FROM tidegate.running
UNION ALL
SELECT packed.task, l.token, packed.limit_id IS NOT NULL, false, l.started_at
FROM tidegate.leases l
CROSS JOIN LATERAL unnest(l.tasks, l.limits) AS packed (task, limit_id);

-- The groups as they must be by the capacities of the limits and by who holds what.
CREATE VIEW tidegate.expected_slot_groups AS
WITH allotted AS (
    SELECT l.id AS limit_id, g.number,
           l.capacity / 50 + (g.number < mod(l.capacity, 50))::integer AS capacity
    FROM tidegate.limits l
    CROSS JOIN LATERAL generate_series(0, least(l.capacity, 50)::integer - 1) AS g (number)
    WHERE l.capacity IS NOT NULL
), held AS (
    SELECT h.limit_id, mod(h.number, 50)::integer AS number,
           array_agg(h.number::integer ORDER BY h.number) AS taken
    FROM tidegate.held_slots h GROUP BY h.limit_id, mod(h.number, 50)
)
SELECT limit_id, number,
       -- 0 where the limit has no room there.
       CASE WHEN l.capacity IS NOT NULL THEN coalesce(allotted.capacity, 0) END AS capacity,
       coalesce(held.taken, '{}') AS taken
FROM allotted
FULL JOIN held USING (limit_id, number)
LEFT JOIN tidegate.limits l ON l.id = limit_id;

-- The state of every task, for those who count. An unfinished task's is the place it stands in.
CREATE VIEW tidegate.task_states AS
SELECT t.id, t.job, t.workflow,
       CASE WHEN s.task IS NOT NULL THEN 0
            WHEN l.task IS NOT NULL THEN 2
            WHEN u.task IS NOT NULL THEN 3
            ELSE 1 END AS state
FROM tidegate.tasks t
LEFT JOIN tidegate.scheduled s ON s.task = t.id
LEFT JOIN tidegate.waiters l ON l.task = t.id
LEFT JOIN tidegate.running_attempts u ON u.task = t.id
UNION ALL
SELECT id, job, workflow, state FROM tidegate.finished;

-- Makes the partitions that tasks which end today or tomorrow go to, and drops those whose day has come;
-- gives how many tasks went with them. $1 is the time. Whoever comes while another is at it leaves it to
-- them. Nobody waits behind it for longer than a moment: what cannot be locked is left for the next time.
CREATE FUNCTION tidegate.rotate_finished_partitions(now_ms bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    today integer := now_ms / 86400000;
    name text;
    day integer;
    of_day bigint;
    removed bigint := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(7453126, 4) THEN
        RETURN 0;
    END IF;
    FOR day IN
        SELECT DISTINCT today + kept.days + ahead.days
        FROM tidegate.kinds k
        CROSS JOIN LATERAL (VALUES (k.remove_on_completed_days), (k.remove_on_failed_days))
             AS kept (days)
        CROSS JOIN (VALUES (1), (2)) AS ahead (days)
        WHERE kept.days > 0
    LOOP
        name := 'finished_' || day;
        CONTINUE WHEN to_regclass('tidegate.' || name) IS NOT NULL;
        BEGIN
            -- Attached, not made as a part: so those who finish tasks meanwhile need not wait.
            EXECUTE format('CREATE TABLE tidegate.%I (LIKE tidegate.finished INCLUDING ALL)', name);
            EXECUTE format('ALTER TABLE tidegate.finished ATTACH PARTITION tidegate.%I '
                           'FOR VALUES FROM (%s) TO (%s)', name, day, day + 1);
        EXCEPTION WHEN lock_not_available OR check_violation THEN
            -- Somebody is in the way, or tasks of that day are among the strays already.
            NULL;
        END;
    END LOOP;
    FOR name, day IN
        SELECT c.relname, substr(c.relname, 10)::integer
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'tidegate.finished'::regclass AND c.relname ~ '^finished_[0-9]+$'
          AND substr(c.relname, 10)::integer <= today
    LOOP
        BEGIN
            EXECUTE format('SELECT count(*) FROM tidegate.%I', name) INTO of_day;
            EXECUTE format('DROP TABLE tidegate.%I', name);
            removed := removed + of_day;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
    RETURN removed;
END $$;

-- Submitting from SQL: `tidegate.enqueue`, for any language and any trigger, in the caller's own
-- transaction. It keeps the rules of a submit: it only inserts, and locks nothing that a claim or a
-- finish needs; only a submit of the same unique key waits for it.
--
-- Names are not made here. A transaction may be long, and would keep everybody else from a name
-- that it made: kinds come with a worker's registration or with `create_kind`, jobs with a submit or
-- with `create_job`.
--
-- Who may enqueue need not be able to read anything: the functions run with the rights of their
-- owner, with a search path that nobody can put anything into.

CREATE FUNCTION tidegate.raise_invalid_argument(message text, hint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = raise_invalid_argument.message,
        HINT = raise_invalid_argument.hint;
END $$;

-- The same bounds as everywhere.
CREATE FUNCTION tidegate.check_name(what text, name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF name = '' THEN
        PERFORM tidegate.raise_invalid_argument(format('the %s is empty', what), 'Give it at least one character.');
    ELSIF octet_length(convert_to(name, 'UTF8')) > 200 THEN
        PERFORM tidegate.raise_invalid_argument(
            format('the %s has %s bytes', what, octet_length(convert_to(name, 'UTF8'))),
            'At most 200 are allowed.');
    ELSIF name ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        PERFORM tidegate.raise_invalid_argument(format('the %s has a control character', what), 'Remove it.');
    ELSIF what IN ('queue', 'kind') AND strpos(name, ',') > 0 THEN
        PERFORM tidegate.raise_invalid_argument(format('the %s %I has a comma', what, name),
                                                'Use another character.');
    END IF;
END $$;

CREATE FUNCTION tidegate.check_number(what text, number bigint, lowest bigint, highest bigint)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF number NOT BETWEEN lowest AND highest THEN
        PERFORM tidegate.raise_invalid_argument(format('the %s is %s', what, number),
                                                format('It must be between %s and %s.', lowest, highest));
    END IF;
END $$;

-- What a task has to be before it is stored, whoever stores it.
CREATE FUNCTION tidegate.check_task(
    kind text, payloads jsonb[], queue text, group_name text, job text, workflow text,
    unique_key text, priority integer, weight integer, max_attempts integer, timeout interval
) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    payload jsonb;
BEGIN
    IF kind IS NULL OR payloads IS NULL OR priority IS NULL OR weight IS NULL THEN
        PERFORM tidegate.raise_invalid_argument('the kind, the payload, the priority or the weight is NULL',
                                                'Leave out what has a default.');
    END IF;
    PERFORM tidegate.check_name('kind', kind);
    PERFORM tidegate.check_name('queue', queue);
    PERFORM tidegate.check_name('group', group_name);
    PERFORM tidegate.check_name('job', job);
    PERFORM tidegate.check_name('workflow', workflow);
    PERFORM tidegate.check_name('unique key', unique_key);
    PERFORM tidegate.check_number('weight', weight, 1, 1000);
    PERFORM tidegate.check_number('priority', priority, -1000, 1000);
    PERFORM tidegate.check_number('max_attempts', max_attempts, 1, 1000);
    PERFORM tidegate.check_number('timeout in ms', (extract(epoch FROM timeout) * 1000)::bigint,
                                  1, 31622400000);
    PERFORM tidegate.check_number('number of payloads', cardinality(payloads), 0, 10000);
    FOREACH payload IN ARRAY payloads LOOP
        IF payload IS NULL THEN
            PERFORM tidegate.raise_invalid_argument('a payload is NULL', 'Say ''null'' for the JSON value.');
        ELSIF octet_length(convert_to(payload::text, 'UTF8')) > 1048576 THEN
            PERFORM tidegate.raise_invalid_argument(
                format('a payload has %s bytes', octet_length(convert_to(payload::text, 'UTF8'))),
                'At most 1048576 are allowed.');
        ELSIF jsonb_path_exists(
            payload, 'strict $.**{64} ? (@.type() == "array" || @.type() == "object")') THEN
            PERFORM tidegate.raise_invalid_argument('a payload is nested deeper than 64 levels', 'Make it flatter.');
        END IF;
    END LOOP;
END $$;

-- Stores tasks that differ in their payload alone, in their order.
CREATE FUNCTION tidegate.insert_tasks(
    kind text, payloads jsonb[], queue text, group_name text, job text, workflow text,
    unique_key text, priority integer, weight integer, max_attempts integer, timeout interval,
    run_at timestamptz, on_failure text, trace text
) RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    counters record;
    lane record;
    group_limit record;
    now_ms bigint := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    run_at_ms bigint := (extract(epoch FROM insert_tasks.run_at) * 1000)::bigint;
    ids bigint[];
BEGIN
    IF insert_tasks.on_failure IS NULL OR insert_tasks.on_failure NOT IN ('halt', 'continue') THEN
        PERFORM tidegate.raise_invalid_argument(format('on_failure is %L', insert_tasks.on_failure),
                                                'Say halt, so that the workflow halts, or continue.');
    END IF;
    PERFORM tidegate.check_name('trace', insert_tasks.trace);
    -- Before any limit is looked up: a `limits_version` must never be newer than what its bearer knew.
    SELECT c.virtual_time, c.limits_version INTO counters FROM tidegate.counters c;
    SELECT l.id, l.queue INTO lane
    FROM tidegate.kinds k
    JOIN tidegate.lanes l ON l.kind = k.name AND l.queue = coalesce(insert_tasks.queue, k.queue)
    WHERE k.name = insert_tasks.kind;
    IF lane.id IS NULL THEN
        PERFORM tidegate.raise_invalid_argument(
            format('the kind %I is not known%s', insert_tasks.kind,
                   CASE WHEN insert_tasks.queue IS NULL THEN ''
                        ELSE format(' in the queue %I', insert_tasks.queue) END),
            'Start a worker that serves it, or call tidegate.create_kind once before.');
    END IF;
    IF insert_tasks.job IS NOT NULL
       AND NOT EXISTS (SELECT FROM tidegate.limits WHERE name = 'job:' || insert_tasks.job) THEN
        PERFORM tidegate.raise_invalid_argument(format('the job %I is not known', insert_tasks.job),
                                                'Call tidegate.create_job once before.');
    END IF;
    SELECT l.id, l.name, l.capacity INTO group_limit FROM tidegate.limits l
    WHERE l.name = 'group:' || coalesce(insert_tasks.group_name, insert_tasks.kind);
    -- A paused limit is full, not too small.
    IF insert_tasks.weight > 1 AND group_limit.capacity > 0
       AND insert_tasks.weight > group_limit.capacity THEN
        PERFORM tidegate.raise_invalid_argument(
            format('a task of weight %s can never run under %I, whose limit is %s',
                   insert_tasks.weight, group_limit.name, group_limit.capacity),
            'Lower its weight or raise the limit.');
    END IF;
    WITH new AS (
        INSERT INTO tidegate.tasks (id, lane, kind, queue, group_name, job, workflow, unique_key,
                                    weight, priority, max_attempts, timeout_ms, due_at,
                                    created_at, on_failure, trace, payload)
        SELECT nextval('tidegate.task_ids'), lane.id, insert_tasks.kind, lane.queue,
               insert_tasks.group_name, insert_tasks.job, insert_tasks.workflow, insert_tasks.unique_key,
               insert_tasks.weight, insert_tasks.priority, insert_tasks.max_attempts,
               (extract(epoch FROM insert_tasks.timeout) * 1000)::bigint,
               greatest(run_at_ms, now_ms), now_ms,
               (insert_tasks.on_failure = 'continue')::integer, insert_tasks.trace,
               convert_to(one.payload::text, 'UTF8')
        FROM (SELECT p.payload FROM unnest(insert_tasks.payloads) WITH ORDINALITY AS p (payload, place)
              ORDER BY p.place) AS one
        RETURNING id
    )
    SELECT array_agg(id ORDER BY id) INTO ids FROM new;
    -- A step of a workflow takes its turn at once, whenever it is due.
    IF run_at_ms > now_ms AND insert_tasks.workflow IS NULL THEN
        INSERT INTO tidegate.scheduled (task, run_at) SELECT unnest(ids), run_at_ms;
    ELSIF insert_tasks.job IS NOT NULL OR insert_tasks.workflow IS NOT NULL
          OR group_limit.id IS NOT NULL THEN
        INSERT INTO tidegate.inbox (task, job)
        SELECT unnest(ids), CASE WHEN insert_tasks.workflow IS NULL THEN insert_tasks.job END;
    ELSE
        INSERT INTO tidegate.ready (task, lane, rank, tag, limits_version, holds_slots, ready_at)
        SELECT unnest(ids), lane.id, floor(now_ms / 60000.0)::bigint - insert_tasks.priority,
               counters.virtual_time, counters.limits_version, false, now_ms;
    END IF;
    PERFORM pg_notify('tidegate', '');
    RETURN QUERY SELECT unnest(ids);
END $$;

-- One task. Where a task with the same unique key is unfinished, gives that one.
CREATE FUNCTION tidegate.enqueue(
    kind text, payload jsonb DEFAULT 'null', queue text DEFAULT NULL, group_name text DEFAULT NULL,
    job text DEFAULT NULL, workflow text DEFAULT NULL, unique_key text DEFAULT NULL,
    priority integer DEFAULT 0, weight integer DEFAULT 1, max_attempts integer DEFAULT NULL,
    timeout interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    on_failure text DEFAULT 'halt', trace text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    id bigint;
BEGIN
    PERFORM tidegate.check_task(enqueue.kind, ARRAY[enqueue.payload], enqueue.queue,
                                enqueue.group_name, enqueue.job, enqueue.workflow,
                                enqueue.unique_key, enqueue.priority, enqueue.weight,
                                enqueue.max_attempts, enqueue.timeout);
    WHILE enqueue.unique_key IS NOT NULL LOOP
        INSERT INTO tidegate.unique_keys (key) VALUES (enqueue.unique_key) ON CONFLICT DO NOTHING;
        EXIT WHEN FOUND;
        SELECT u.task INTO id FROM tidegate.unique_keys u WHERE u.key = enqueue.unique_key;
        IF id IS NOT NULL THEN
            RETURN id;
        END IF;
        -- Neither free nor taken: it was given back in between.
    END LOOP;
    SELECT new.id INTO id
    FROM tidegate.insert_tasks(enqueue.kind, ARRAY[enqueue.payload], enqueue.queue,
                            enqueue.group_name, enqueue.job, enqueue.workflow, enqueue.unique_key,
                            enqueue.priority, enqueue.weight, enqueue.max_attempts,
                            enqueue.timeout, enqueue.run_at, enqueue.on_failure, enqueue.trace) AS new (id);
    UPDATE tidegate.unique_keys SET task = id WHERE key = enqueue.unique_key;
    RETURN id;
END $$;

-- Many that differ in their payload alone, in their order; gives their ids.
CREATE FUNCTION tidegate.enqueue_many(
    kind text, payloads jsonb[], queue text DEFAULT NULL, group_name text DEFAULT NULL,
    job text DEFAULT NULL, workflow text DEFAULT NULL, priority integer DEFAULT 0,
    weight integer DEFAULT 1, max_attempts integer DEFAULT NULL, timeout interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, on_failure text DEFAULT 'halt', trace text DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM tidegate.check_task(kind, payloads, queue, group_name, job, workflow, NULL, priority,
                                weight, max_attempts, timeout);
    RETURN QUERY SELECT * FROM tidegate.insert_tasks(kind, payloads, queue, group_name, job, workflow,
                                                  NULL, priority, weight, max_attempts, timeout,
                                                  run_at, on_failure, trace);
END $$;

-- Makes a kind known, with the defaults of a registration, where it is not; and lets it be used in
-- a queue. In a transaction of its own: until it ends, nobody else can make names.
CREATE FUNCTION tidegate.create_kind(kind text, queue text DEFAULT 'default') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF create_kind.kind IS NULL OR create_kind.queue IS NULL THEN
        PERFORM tidegate.raise_invalid_argument('the kind or the queue is NULL', 'Give both a name.');
    END IF;
    PERFORM tidegate.check_name('kind', create_kind.kind);
    PERFORM tidegate.check_name('queue', create_kind.queue);
    PERFORM pg_advisory_xact_lock(7453126, 3);
    INSERT INTO tidegate.kinds (name, queue, max_attempts, backoff_base_ms, backoff_cap_ms,
                                max_crashes)
    VALUES (create_kind.kind, create_kind.queue, 5, 1000, 3600000, 3)
    ON CONFLICT (name) DO NOTHING;
    INSERT INTO tidegate.lanes (queue, kind)
    SELECT create_kind.queue, create_kind.kind
    WHERE NOT EXISTS (SELECT FROM tidegate.lanes l
                      WHERE l.queue = create_kind.queue AND l.kind = create_kind.kind)
    ON CONFLICT (queue, kind) DO NOTHING;
END $$;

-- Makes a job known where it is not: how many of its tasks run at once at most, and the weight of its
-- share. In a transaction of its own, as a kind.
CREATE FUNCTION tidegate.create_job(
    job text, concurrency integer DEFAULT NULL, weight integer DEFAULT 1,
    min_concurrency integer DEFAULT 0, priority integer DEFAULT 0, delay interval DEFAULT '0'
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF job IS NULL OR weight IS NULL OR min_concurrency IS NULL OR priority IS NULL OR delay IS NULL THEN
        PERFORM tidegate.raise_invalid_argument('the job or one of its numbers is NULL',
                                                'Give it a name, and leave out what has a default.');
    END IF;
    PERFORM tidegate.check_name('job', job);
    PERFORM tidegate.check_number('weight', weight, 1, 1000);
    PERFORM tidegate.check_number('concurrency', concurrency, 0, 2147483647);
    PERFORM tidegate.check_number('min_concurrency', min_concurrency, 0, 2147483647);
    PERFORM tidegate.check_number('priority', priority, -1000, 1000);
    PERFORM tidegate.check_number('delay in ms', (extract(epoch FROM delay) * 1000)::bigint,
                                  0, 31622400000);
    PERFORM pg_advisory_xact_lock(7453126, 3);
    WITH made AS (
        INSERT INTO tidegate.limits (name, capacity, source, version, applies_from_version, waiting,
                                     skipped, dirty, share_weight, last_tag, in_window,
                                     min_concurrency, priority, delay_ms)
        SELECT 'job:' || job, concurrency, 1, 1, 0, 0, 0, false, create_job.weight, 0, 0,
               create_job.min_concurrency, create_job.priority,
               (extract(epoch FROM create_job.delay) * 1000)::bigint
        WHERE NOT EXISTS (SELECT FROM tidegate.limits WHERE name = 'job:' || job)
        ON CONFLICT (name) DO NOTHING
        RETURNING id, capacity
    )
    INSERT INTO tidegate.slot_groups (limit_id, number, capacity)
    SELECT made.id, g.number, made.capacity / 50 + (g.number < mod(made.capacity, 50))::integer
    FROM made CROSS JOIN LATERAL generate_series(0, least(made.capacity, 50)::integer - 1) AS g (number)
    WHERE made.capacity IS NOT NULL;
END $$;

-- Whom these are for is said by the roles.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tidegate FROM PUBLIC;
