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

-- The groups as they must be by the capacities of the limits and by who holds what.
CREATE VIEW tidegate.slot_groups_due AS
WITH allotted AS (
    SELECT l.id AS limit_id, g.number,
           l.capacity / 50 + (g.number < mod(l.capacity, 50))::integer AS capacity
    FROM tidegate.limits l
    CROSS JOIN LATERAL generate_series(0, least(l.capacity, 50)::integer - 1) AS g (number)
    WHERE l.capacity IS NOT NULL
), held AS (
    SELECT h.limit_id, mod(h.number, 50)::integer AS number,
           array_agg(h.number::integer ORDER BY h.number) AS taken
    FROM tidegate.holdings h GROUP BY h.limit_id, mod(h.number, 50)
)
SELECT limit_id, number,
       -- 0 where the limit has no room there.
       CASE WHEN l.capacity IS NOT NULL THEN coalesce(allotted.capacity, 0) END AS capacity,
       coalesce(held.taken, '{}') AS taken
FROM allotted
FULL JOIN held USING (limit_id, number)
LEFT JOIN tidegate.limits l ON l.id = limit_id;

INSERT INTO tidegate.slot_groups SELECT * FROM tidegate.slot_groups_due;
ALTER TABLE tidegate.limits DROP COLUMN held;

-- Slots that were given back without the limit's lock, by their numbers.
ALTER TABLE tidegate.passes DROP COLUMN freed;
ALTER TABLE tidegate.passes ADD COLUMN freed integer[] NOT NULL DEFAULT '{}';

CREATE OR REPLACE FUNCTION tidegate.make_job(
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
    WITH made AS (
        INSERT INTO tidegate.limits (name, capacity, source, version, since, waiting, aside, dirty,
                                     share_weight, last_tag, ahead)
        SELECT 'job:' || job, concurrency, 1, 1, 0, 0, 0, false, make_job.weight, 0, 0
        WHERE NOT EXISTS (SELECT FROM tidegate.limits WHERE name = 'job:' || job)
        ON CONFLICT (name) DO NOTHING
        RETURNING id, capacity
    )
    INSERT INTO tidegate.slot_groups (limit_id, number, capacity)
    SELECT made.id, g.number, made.capacity / 50 + (g.number < mod(made.capacity, 50))::integer
    FROM made CROSS JOIN LATERAL generate_series(0, least(made.capacity, 50)::integer - 1) AS g (number)
    WHERE made.capacity IS NOT NULL;
END $$;
