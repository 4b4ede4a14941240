-- The next leave their lines, and what changed at the limits is noted for whoever locks them: a
-- connection counts in a row of its own, so nobody waits for another.
, left_line AS (
    DELETE FROM tidegate.line
    WHERE ctid = ANY ((SELECT CASE WHEN is_on THEN rows END FROM relay)::tid[])
), pass AS MATERIALIZED (
    SELECT given.id, count.taken, given.numbers[count.taken + 1:]::integer[] AS freed,
           -- Somebody waits whom another is about to take: if that comes to nothing, a slot is free.
           CASE WHEN count.taken < given.slots AND EXISTS (
               SELECT FROM tidegate.line WHERE limit_id = given.id AND class = 1
               AND ctid <> ALL (coalesce(relay.rows, '{}'))) THEN relay.now + 100 END AS look_at
    FROM relay CROSS JOIN given
    CROSS JOIN LATERAL (
        SELECT coalesce(cardinality(array_positions(relay.limits, given.id)), 0) AS taken
    ) AS count
    WHERE relay.is_on
), noted AS (
    INSERT INTO tidegate.passes AS p (limit_id, tasks, urgent, freed, taken, look_at, backend)
    SELECT id, 0, false, freed, taken, look_at, pg_backend_pid() FROM pass
    ON CONFLICT (limit_id, backend) DO UPDATE
    SET freed = p.freed || excluded.freed, taken = p.taken + excluded.taken,
        look_at = least(p.look_at, excluded.look_at)
), ending AS MATERIALIZED (
    -- Attempts without a result failed: their tasks do not end here.
    SELECT CASE WHEN is_on THEN ARRAY (
               SELECT task FROM unnest($7::bigint[], $9::bytea[]) AS one (task, result)
               WHERE result IS NOT NULL) ELSE '{}' END AS tasks,
           CASE WHEN is_on THEN $10::bigint[] ELSE '{}' END AS leases, $7::bigint[] AS told,
           $9::bytea[] AS results, now
    FROM relay
)
