-- Online: programs of the version before leave the column alone.
-- The job whose share brings a task to the gate; none where it has none or is a step of a workflow.
ALTER TABLE tidegate.arrived ADD COLUMN job text COLLATE "C";
CREATE INDEX arrived_job ON tidegate.arrived (job, task) WHERE job IS NOT NULL;

-- Submitting from SQL says it too.
CREATE OR REPLACE FUNCTION tidegate.put_tasks(
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
        INSERT INTO tidegate.arrived (task, job)
        SELECT unnest(ids), CASE WHEN put_tasks.workflow IS NULL THEN put_tasks.job END;
    ELSE
        INSERT INTO tidegate.ready (task, lane, rank, tag, stamp, gated, since)
        SELECT unnest(ids), lane.id, floor(now_ms / 60000.0)::bigint - put_tasks.priority,
               counters.virtual_time, counters.limits_version, false, now_ms;
    END IF;
    PERFORM pg_notify('tidegate', '');
    RETURN QUERY SELECT unnest(ids);
END $$;
