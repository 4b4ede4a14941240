-- The next leave their lines, and what changed at the limits is noted for whoever locks them: a
-- connection counts in a row of its own, so nobody waits for another.
, left_line AS (
    DELETE FROM tidegate.waiters
    WHERE ctid = ANY ((SELECT CASE WHEN is_on THEN rows END FROM relay)::tid[])
), pass AS MATERIALIZED (
    SELECT given.id, count.dequeued, given.numbers[count.dequeued + 1:]::integer[] AS freed_slots,
           -- Somebody waits whom another is about to take: if that comes to nothing, a slot is free.
           CASE WHEN count.dequeued < given.slots AND EXISTS (
               SELECT FROM tidegate.waiters WHERE limit_id = given.id AND wait_reason = 1
               AND ctid <> ALL (coalesce(relay.rows, '{}'))) THEN relay.now + 100 END AS recheck_at
    FROM relay CROSS JOIN given
    CROSS JOIN LATERAL (
        SELECT coalesce(cardinality(array_positions(relay.limits, given.id)), 0) AS dequeued
    ) AS count
    WHERE relay.is_on
), noted AS (
    INSERT INTO tidegate.limit_deltas AS p (limit_id, claimed_tasks, needs_drain, freed_slots, dequeued, recheck_at,
                                            backend_pid)
    SELECT id, 0, false, freed_slots, dequeued, recheck_at, pg_backend_pid() FROM pass
    ON CONFLICT (limit_id, backend_pid) DO UPDATE
    SET freed_slots = p.freed_slots || excluded.freed_slots, dequeued = p.dequeued + excluded.dequeued,
        recheck_at = least(p.recheck_at, excluded.recheck_at)
), ending AS MATERIALIZED (
    -- Attempts without a result failed: their tasks do not end here.
    SELECT CASE WHEN is_on THEN ARRAY (
               SELECT task FROM unnest($7::bigint[], $9::bytea[]) AS one (task, result)
               WHERE result IS NOT NULL) ELSE '{}' END AS tasks,
           CASE WHEN is_on THEN $10::bigint[] ELSE '{}' END AS leases, $7::bigint[] AS told,
           $9::bytea[] AS results, now
    FROM relay
)
