-- Finished tasks have a table of their own, so that the one that claims and finishes go through stays as
-- small as what is unfinished. It is cut by the day on which tasks are removed: removing a day's is dropping
-- its partition, and leaves nothing to clean up.
CREATE TABLE tidegate.ended (
    id           bigint NOT NULL,
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
    spent        bigint NOT NULL,
    deaths       bigint NOT NULL,
    arrival      bigint NOT NULL,
    created_at   bigint NOT NULL,
    payload      bytea NOT NULL,
    error        bytea,
    state        integer NOT NULL,
    result       bytea,
    finished_at  bigint NOT NULL,
    -- The day that begins when it is removed, counted from 1970-01-01 UTC; 2147483647 is never.
    remove_day   integer NOT NULL,
    PRIMARY KEY (id, remove_day)
) PARTITION BY RANGE (remove_day);
CREATE INDEX ended_job ON tidegate.ended (job) WHERE job IS NOT NULL;
CREATE INDEX ended_workflow ON tidegate.ended (workflow) WHERE workflow IS NOT NULL;

-- What is kept for ever.
CREATE TABLE tidegate.ended_kept PARTITION OF tidegate.ended
    FOR VALUES FROM (2147483647) TO (MAXVALUE);
-- What ends when its day has no partition: no keeper came by in time. It is removed row by row.
CREATE TABLE tidegate.ended_stray PARTITION OF tidegate.ended DEFAULT;
CREATE INDEX ended_stray_remove_day ON tidegate.ended_stray (remove_day);

INSERT INTO tidegate.ended
SELECT id, lane, kind, queue, group_name, job, workflow, unique_key, weight, priority, max_attempts,
       timeout_ms, spent, deaths, arrival, created_at, payload, error, state, result, finished_at,
       coalesce((remove_at + 86399999) / 86400000, 2147483647)
FROM tidegate.tasks WHERE state IS NOT NULL;
DELETE FROM tidegate.tasks WHERE state IS NOT NULL;

DROP VIEW tidegate.states;
ALTER TABLE tidegate.tasks
    DROP COLUMN state, DROP COLUMN result, DROP COLUMN finished_at, DROP COLUMN remove_at;
ALTER TABLE tidegate.tasks SET (autovacuum_vacuum_scale_factor = 0);

-- The state of every task, for those who count. An unfinished task's is the place it stands in.
CREATE VIEW tidegate.states AS
SELECT t.id, t.job, t.workflow,
       CASE WHEN s.task IS NOT NULL THEN 0
            WHEN l.task IS NOT NULL THEN 2
            WHEN u.task IS NOT NULL THEN 3
            ELSE 1 END AS state
FROM tidegate.tasks t
LEFT JOIN tidegate.scheduled s ON s.task = t.id
LEFT JOIN tidegate.line l ON l.task = t.id
LEFT JOIN tidegate.attempts u ON u.task = t.id
UNION ALL
SELECT id, job, workflow, state FROM tidegate.ended;

-- Makes the partitions that tasks which end today or tomorrow go to, and drops those whose day has come;
-- gives how many tasks went with them. $1 is the time. Whoever comes while another is at it leaves it to
-- them. Nobody waits behind it for longer than a moment: what cannot be locked is left for the next time.
CREATE FUNCTION tidegate.turn_days(now_ms bigint) RETURNS bigint
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
        name := 'ended_' || day;
        CONTINUE WHEN to_regclass('tidegate.' || name) IS NOT NULL;
        BEGIN
            -- Attached, not made as a part: so those who finish tasks meanwhile need not wait.
            EXECUTE format('CREATE TABLE tidegate.%I (LIKE tidegate.ended INCLUDING ALL)', name);
            EXECUTE format('ALTER TABLE tidegate.ended ATTACH PARTITION tidegate.%I '
                           'FOR VALUES FROM (%s) TO (%s)', name, day, day + 1);
        EXCEPTION WHEN lock_not_available OR check_violation THEN
            -- Somebody is in the way, or tasks of that day are among the strays already.
            NULL;
        END;
    END LOOP;
    FOR name, day IN
        SELECT c.relname, substr(c.relname, 7)::integer
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'tidegate.ended'::regclass AND c.relname ~ '^ended_[0-9]+$'
          AND substr(c.relname, 7)::integer <= today
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
REVOKE ALL ON FUNCTION tidegate.turn_days(bigint) FROM PUBLIC;
