-- Submitting from SQL: `tidegate.enqueue`, for any language and any trigger, in the caller's own
-- transaction. It keeps the rules of a submit: it only inserts, and locks nothing that a claim or a
-- finish needs; only a submit of the same unique key waits for it.
--
-- Names are not made here. A transaction may be long, and would keep everybody else from a name
-- that it made: kinds come with a worker's registration or with `make_kind`, jobs with a submit or
-- with `make_job`.
--
-- Who may enqueue need not be able to read anything: the functions run with the rights of their
-- owner, with a search path that nobody can put anything into.

CREATE FUNCTION tidegate.refuse(message text, hint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = refuse.message,
        HINT = refuse.hint;
END $$;

-- The same bounds as everywhere.
CREATE FUNCTION tidegate.check_name(what text, name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF name = '' THEN
        PERFORM tidegate.refuse(format('the %s is empty', what), 'Give it at least one character.');
    ELSIF octet_length(convert_to(name, 'UTF8')) > 200 THEN
        PERFORM tidegate.refuse(
            format('the %s has %s bytes', what, octet_length(convert_to(name, 'UTF8'))),
            'At most 200 are allowed.');
    ELSIF name ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        PERFORM tidegate.refuse(format('the %s has a control character', what), 'Remove it.');
    ELSIF what IN ('queue', 'kind') AND strpos(name, ',') > 0 THEN
        PERFORM tidegate.refuse(format('the %s %I has a comma', what, name),
                                'Use another character.');
    END IF;
END $$;

CREATE FUNCTION tidegate.check_number(what text, number bigint, lowest bigint, highest bigint)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF number NOT BETWEEN lowest AND highest THEN
        PERFORM tidegate.refuse(format('the %s is %s', what, number),
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
        PERFORM tidegate.refuse('the kind, the payload, the priority or the weight is NULL',
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
            PERFORM tidegate.refuse('a payload is NULL', 'Say ''null'' for the JSON value.');
        ELSIF octet_length(convert_to(payload::text, 'UTF8')) > 1048576 THEN
            PERFORM tidegate.refuse(
                format('a payload has %s bytes', octet_length(convert_to(payload::text, 'UTF8'))),
                'At most 1048576 are allowed.');
        ELSIF jsonb_path_exists(
            payload, 'strict $.**{64} ? (@.type() == "array" || @.type() == "object")') THEN
            PERFORM tidegate.refuse('a payload is nested deeper than 64 levels', 'Make it flatter.');
        END IF;
    END LOOP;
END $$;

-- Stores tasks that differ in their payload alone, in their order.
CREATE FUNCTION tidegate.put_tasks(
    kind text, payloads jsonb[], queue text, group_name text, job text, workflow text,
    unique_key text, priority integer, weight integer, max_attempts integer, timeout interval,
    run_at timestamptz
) RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    counters record;
    lane record;
    group_limit record;
    now_ms bigint := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    run_at_ms bigint := (extract(epoch FROM put_tasks.run_at) * 1000)::bigint;
    ids bigint[];
BEGIN
    -- Before any limit is looked up: a stamp must never be newer than what its bearer knew.
    SELECT c.virtual_time, c.limits_version INTO counters FROM tidegate.counters c;
    SELECT l.id, l.queue INTO lane
    FROM tidegate.kinds k
    JOIN tidegate.lanes l ON l.kind = k.name AND l.queue = coalesce(put_tasks.queue, k.queue)
    WHERE k.name = put_tasks.kind;
    IF lane.id IS NULL THEN
        PERFORM tidegate.refuse(
            format('the kind %I is not known%s', put_tasks.kind,
                   CASE WHEN put_tasks.queue IS NULL THEN ''
                        ELSE format(' in the queue %I', put_tasks.queue) END),
            'Start a worker that serves it, or call tidegate.make_kind once before.');
    END IF;
    IF put_tasks.job IS NOT NULL
       AND NOT EXISTS (SELECT FROM tidegate.limits WHERE name = 'job:' || put_tasks.job) THEN
        PERFORM tidegate.refuse(format('the job %I is not known', put_tasks.job),
                                'Call tidegate.make_job once before.');
    END IF;
    SELECT l.id, l.name, l.capacity INTO group_limit FROM tidegate.limits l
    WHERE l.name = 'group:' || coalesce(put_tasks.group_name, put_tasks.kind);
    -- A paused limit is full, not too small.
    IF put_tasks.weight > 1 AND group_limit.capacity > 0
       AND put_tasks.weight > group_limit.capacity THEN
        PERFORM tidegate.refuse(
            format('a task of weight %s can never run under %I, whose limit is %s',
                   put_tasks.weight, group_limit.name, group_limit.capacity),
            'Lower its weight or raise the limit.');
    END IF;
    WITH new AS (
        INSERT INTO tidegate.tasks (id, lane, kind, queue, group_name, job, workflow, unique_key,
                                    weight, priority, max_attempts, timeout_ms, arrival,
                                    created_at, payload)
        SELECT nextval('tidegate.task_ids'), lane.id, put_tasks.kind, lane.queue,
               put_tasks.group_name, put_tasks.job, put_tasks.workflow, put_tasks.unique_key,
               put_tasks.weight, put_tasks.priority, put_tasks.max_attempts,
               (extract(epoch FROM put_tasks.timeout) * 1000)::bigint,
               greatest(run_at_ms, now_ms), now_ms,
               convert_to(one.payload::text, 'UTF8')
        FROM (SELECT p.payload FROM unnest(put_tasks.payloads) WITH ORDINALITY AS p (payload, place)
              ORDER BY p.place) AS one
        RETURNING id
    )
    SELECT array_agg(id ORDER BY id) INTO ids FROM new;
    -- A step of a workflow takes its turn at once, whenever it is due.
    IF run_at_ms > now_ms AND put_tasks.workflow IS NULL THEN
        INSERT INTO tidegate.scheduled (task, run_at) SELECT unnest(ids), run_at_ms;
    ELSIF put_tasks.job IS NOT NULL OR put_tasks.workflow IS NOT NULL
          OR group_limit.id IS NOT NULL THEN
        INSERT INTO tidegate.arrived (task) SELECT unnest(ids);
    ELSE
        INSERT INTO tidegate.ready (task, lane, rank, tag, stamp, gated, since)
        SELECT unnest(ids), lane.id, floor(now_ms / 60000.0)::bigint - put_tasks.priority,
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
    timeout interval DEFAULT NULL, run_at timestamptz DEFAULT NULL
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
    FROM tidegate.put_tasks(enqueue.kind, ARRAY[enqueue.payload], enqueue.queue,
                            enqueue.group_name, enqueue.job, enqueue.workflow, enqueue.unique_key,
                            enqueue.priority, enqueue.weight, enqueue.max_attempts,
                            enqueue.timeout, enqueue.run_at) AS new (id);
    UPDATE tidegate.unique_keys SET task = id WHERE key = enqueue.unique_key;
    RETURN id;
END $$;

-- Many that differ in their payload alone, in their order; gives their ids.
CREATE FUNCTION tidegate.enqueue_many(
    kind text, payloads jsonb[], queue text DEFAULT NULL, group_name text DEFAULT NULL,
    job text DEFAULT NULL, workflow text DEFAULT NULL, priority integer DEFAULT 0,
    weight integer DEFAULT 1, max_attempts integer DEFAULT NULL, timeout interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM tidegate.check_task(kind, payloads, queue, group_name, job, workflow, NULL, priority,
                                weight, max_attempts, timeout);
    RETURN QUERY SELECT * FROM tidegate.put_tasks(kind, payloads, queue, group_name, job, workflow,
                                                  NULL, priority, weight, max_attempts, timeout,
                                                  run_at);
END $$;

-- Makes a kind known, with the defaults of a registration, where it is not; and lets it be used in
-- a queue. In a transaction of its own: until it ends, nobody else can make names.
CREATE FUNCTION tidegate.make_kind(kind text, queue text DEFAULT 'default') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF make_kind.kind IS NULL OR make_kind.queue IS NULL THEN
        PERFORM tidegate.refuse('the kind or the queue is NULL', 'Give both a name.');
    END IF;
    PERFORM tidegate.check_name('kind', make_kind.kind);
    PERFORM tidegate.check_name('queue', make_kind.queue);
    PERFORM pg_advisory_xact_lock(7453126, 3);
    INSERT INTO tidegate.kinds (name, queue, max_attempts, backoff_base_ms, backoff_cap_ms,
                                max_deaths)
    VALUES (make_kind.kind, make_kind.queue, 5, 1000, 3600000, 3)
    ON CONFLICT (name) DO NOTHING;
    INSERT INTO tidegate.lanes (queue, kind)
    SELECT make_kind.queue, make_kind.kind
    WHERE NOT EXISTS (SELECT FROM tidegate.lanes l
                      WHERE l.queue = make_kind.queue AND l.kind = make_kind.kind)
    ON CONFLICT (queue, kind) DO NOTHING;
END $$;

-- Makes a job known where it is not: how many of its tasks run at once at most, and the weight of its
-- share. In a transaction of its own, as a kind.
CREATE FUNCTION tidegate.make_job(
    job text, concurrency integer DEFAULT NULL, weight integer DEFAULT 1
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF job IS NULL OR weight IS NULL THEN
        PERFORM tidegate.refuse('the job or its weight is NULL', 'Give it a name and a weight.');
    END IF;
    PERFORM tidegate.check_name('job', job);
    PERFORM tidegate.check_number('weight', weight, 1, 1000);
    PERFORM tidegate.check_number('concurrency', concurrency, 0, 2147483647);
    PERFORM pg_advisory_xact_lock(7453126, 3);
    INSERT INTO tidegate.limits (name, capacity, source, version, since, held, waiting, aside,
                                 dirty, share_weight, last_tag, ahead)
    SELECT 'job:' || job, concurrency, 1, 1, 0, 0, 0, 0, false, make_job.weight, 0, 0
    WHERE NOT EXISTS (SELECT FROM tidegate.limits WHERE name = 'job:' || job)
    ON CONFLICT (name) DO NOTHING;
END $$;

-- Whom these are for is said by the roles.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tidegate FROM PUBLIC;
