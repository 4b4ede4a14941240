-- Roles for a PostgreSQL store. Run it as somebody who may make roles, in the database of the
-- store. Where there are no tables yet, run it once more after the first `tidegate migrate`, and after
-- every one that adds tables: until then nobody but the owner and the workers can use them. Running it
-- again changes nothing else.
--
-- Roles belong to the whole server: who has one has it in every database where this was run.
--
-- These roles cannot log in. Give them to those who can:
--
--     GRANT tidegate_worker TO crawler;
--
--   tidegate_owner     owns the schema and all that is in it
--   tidegate_migrator  may become the owner, to migrate:
--                      tidegate migrate --store 'postgres://deploy@host/db?options=-c%20role=tidegate_owner'
--   tidegate_worker    whatever `worker`, `run`, `submit` and the commands of an operator do
--   tidegate_enqueue   submits with tidegate.enqueue and tidegate.enqueue_many; reads nothing
--   tidegate_viewer    reads everything but payloads and results

BEGIN;
-- Workers are not kept waiting behind whoever keeps this waiting.
SET LOCAL lock_timeout = '5s';

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['owner', 'migrator', 'worker', 'enqueue', 'viewer'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', 'tidegate_' || name);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END LOOP;
END $$;

CREATE SCHEMA IF NOT EXISTS tidegate;
ALTER SCHEMA tidegate OWNER TO tidegate_owner;
GRANT tidegate_owner TO tidegate_migrator;
GRANT USAGE ON SCHEMA tidegate TO tidegate_worker, tidegate_enqueue, tidegate_viewer;

-- What is there already, where the store was made by somebody else.
DO $$
DECLARE
    thing record;
BEGIN
    FOR thing IN
        SELECT c.relname, c.relkind FROM pg_class c
        WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
          AND c.relowner <> 'tidegate_owner'::regrole
          -- A sequence that belongs to a column goes with its table.
          AND NOT EXISTS (SELECT FROM pg_depend d
                          WHERE d.objid = c.oid AND d.objsubid = 0 AND d.deptype = 'i'
                            AND d.classid = 'pg_class'::regclass)
    LOOP
        EXECUTE format(
            'ALTER %s tidegate.%I OWNER TO tidegate_owner',
            CASE thing.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
            thing.relname);
    END LOOP;
    FOR thing IN
        SELECT p.oid::regprocedure AS name FROM pg_proc p
        WHERE p.pronamespace = 'tidegate'::regnamespace
          AND p.proowner <> 'tidegate_owner'::regrole
    LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO tidegate_owner', thing.name);
    END LOOP;
END $$;

-- What is there, and what migrations add.
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tidegate TO tidegate_worker;
GRANT SELECT, USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA tidegate TO tidegate_worker;
GRANT SELECT ON ALL TABLES IN SCHEMA tidegate TO tidegate_viewer;
ALTER DEFAULT PRIVILEGES FOR ROLE tidegate_owner IN SCHEMA tidegate
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO tidegate_worker;
ALTER DEFAULT PRIVILEGES FOR ROLE tidegate_owner IN SCHEMA tidegate
    GRANT SELECT, USAGE, UPDATE ON SEQUENCES TO tidegate_worker;
ALTER DEFAULT PRIVILEGES FOR ROLE tidegate_owner REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

-- The rest needs the tables: after the first migration, run the script once more.
DO $$
DECLARE
    columns text;
    part text;
BEGIN
    IF to_regclass('tidegate.migrations') IS NULL THEN
        RAISE NOTICE 'there are no tables yet: migrate, then run this script once more';
        RETURN;
    END IF;
    REVOKE INSERT, UPDATE, DELETE ON tidegate.migrations FROM tidegate_worker;
    -- The finished tasks are in parts, one for each day on which some are removed.
    FOR part IN
        SELECT c.relname FROM pg_class c
        WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relname ~ '^finished'
          AND c.relkind IN ('r', 'p')
    LOOP
        EXECUTE format('REVOKE SELECT ON tidegate.%I FROM tidegate_viewer', part);
    END LOOP;
    SELECT string_agg(quote_ident(attname), ', ') INTO columns FROM pg_attribute
    WHERE attrelid = 'tidegate.tasks'::regclass AND attnum > 0 AND NOT attisdropped
      AND attname NOT IN ('payload', 'result');
    REVOKE SELECT ON tidegate.tasks FROM tidegate_viewer;
    EXECUTE format('GRANT SELECT (%s) ON tidegate.tasks TO tidegate_viewer', columns);
    EXECUTE format('GRANT SELECT (%s, state, finished_at, remove_day) ON tidegate.finished '
                   'TO tidegate_viewer', columns);
    GRANT EXECUTE ON FUNCTION
        tidegate.enqueue(text, jsonb, text, text, text, text, text, integer, integer, integer,
                         interval, timestamptz, text, text),
        tidegate.enqueue_many(text, jsonb[], text, text, text, text, integer, integer, integer,
                              interval, timestamptz, text, text)
        TO tidegate_enqueue, tidegate_worker;
    GRANT EXECUTE ON FUNCTION tidegate.create_kind(text, text),
                              tidegate.create_job(text, integer, integer, integer, integer, interval),
                              tidegate.rotate_finished_partitions(bigint)
        TO tidegate_worker;
END $$;

COMMIT;
