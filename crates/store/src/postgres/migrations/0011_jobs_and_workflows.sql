-- What a failed step does to its workflow (0: it halts, 1: it goes on), and where a task was submitted.
ALTER TABLE tidegate.tasks
    ADD COLUMN on_failure integer NOT NULL DEFAULT 0,
    ADD COLUMN trace text COLLATE "C";
ALTER TABLE tidegate.ended
    ADD COLUMN on_failure integer NOT NULL DEFAULT 0,
    ADD COLUMN trace text COLLATE "C";

-- A limit that nobody passes, whatever its capacity: 0 by an operator's word, else the step of the
-- workflow that failed. When its line is to be looked at. And a job's reserve, its priority, and the
-- time between two starts.
ALTER TABLE tidegate.limits
    ADD COLUMN halt bigint,
    ADD COLUMN look_at bigint,
    ADD COLUMN min_concurrency bigint NOT NULL DEFAULT 0,
    ADD COLUMN priority integer NOT NULL DEFAULT 0,
    ADD COLUMN delay_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN next_at bigint NOT NULL DEFAULT 0;
CREATE INDEX limits_look_at ON tidegate.limits (look_at) WHERE look_at IS NOT NULL;

-- When the tasks of a job that were claimed without its limit's lock began.
ALTER TABLE tidegate.passes ADD COLUMN started_at bigint;

-- Submitting from SQL knows of it too.
DROP FUNCTION tidegate.enqueue(text, jsonb, text, text, text, text, text, integer, integer, integer,
                               interval, timestamptz);
DROP FUNCTION tidegate.enqueue_many(text, jsonb[], text, text, text, text, integer, integer, integer,
                                    interval, timestamptz);
DROP FUNCTION tidegate.put_tasks(text, jsonb[], text, text, text, text, text, integer, integer, integer,
                                 interval, timestamptz);
DROP FUNCTION tidegate.make_job(text, integer, integer);

CREATE FUNCTION tidegate.put_tasks(
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
    run_at_ms bigint := (extract(epoch FROM put_tasks.run_at) * 1000)::bigint;
    ids bigint[];
BEGIN
    IF put_tasks.on_failure IS NULL OR put_tasks.on_failure NOT IN ('halt', 'continue') THEN
        PERFORM tidegate.refuse(format('on_failure is %L', put_tasks.on_failure),
                                'Say halt, so that the workflow halts, or continue.');
    END IF;
    PERFORM tidegate.check_name('trace', put_tasks.trace);
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
                                    created_at, on_failure, trace, payload)
        SELECT nextval('tidegate.task_ids'), lane.id, put_tasks.kind, lane.queue,
               put_tasks.group_name, put_tasks.job, put_tasks.workflow, put_tasks.unique_key,
               put_tasks.weight, put_tasks.priority, put_tasks.max_attempts,
               (extract(epoch FROM put_tasks.timeout) * 1000)::bigint,
               greatest(run_at_ms, now_ms), now_ms,
               (put_tasks.on_failure = 'continue')::integer, put_tasks.trace,
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
    FROM tidegate.put_tasks(enqueue.kind, ARRAY[enqueue.payload], enqueue.queue,
                            enqueue.group_name, enqueue.job, enqueue.workflow, enqueue.unique_key,
                            enqueue.priority, enqueue.weight, enqueue.max_attempts,
                            enqueue.timeout, enqueue.run_at, enqueue.on_failure, enqueue.trace) AS new (id);
    UPDATE tidegate.unique_keys SET task = id WHERE key = enqueue.unique_key;
    RETURN id;
END $$;

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
    RETURN QUERY SELECT * FROM tidegate.put_tasks(kind, payloads, queue, group_name, job, workflow,
                                                  NULL, priority, weight, max_attempts, timeout,
                                                  run_at, on_failure, trace);
END $$;

CREATE FUNCTION tidegate.make_job(
    job text, concurrency integer DEFAULT NULL, weight integer DEFAULT 1,
    min_concurrency integer DEFAULT 0, priority integer DEFAULT 0, delay interval DEFAULT '0'
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF job IS NULL OR weight IS NULL OR min_concurrency IS NULL OR priority IS NULL OR delay IS NULL THEN
        PERFORM tidegate.refuse('the job or one of its numbers is NULL',
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
        INSERT INTO tidegate.limits (name, capacity, source, version, since, waiting, aside, dirty,
                                     share_weight, last_tag, ahead, min_concurrency, priority,
                                     delay_ms)
        SELECT 'job:' || job, concurrency, 1, 1, 0, 0, 0, false, make_job.weight, 0, 0,
               make_job.min_concurrency, make_job.priority,
               (extract(epoch FROM make_job.delay) * 1000)::bigint
        WHERE NOT EXISTS (SELECT FROM tidegate.limits WHERE name = 'job:' || job)
        ON CONFLICT (name) DO NOTHING
        RETURNING id, capacity
    )
    INSERT INTO tidegate.slot_groups (limit_id, number, capacity)
    SELECT made.id, g.number, made.capacity / 50 + (g.number < mod(made.capacity, 50))::integer
    FROM made CROSS JOIN LATERAL generate_series(0, least(made.capacity, 50)::integer - 1) AS g (number)
    WHERE made.capacity IS NOT NULL;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tidegate FROM PUBLIC;
