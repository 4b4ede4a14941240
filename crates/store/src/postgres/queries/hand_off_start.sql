-- Ends attempts and hands their slots to the next, who run on under a new lease of this worker. What
-- finds nobody in line is given back.
--
-- It is what a finish and a claim would do one after the other, where this worker serves those
-- next in line. Nothing is done at all where something is ready that comes before them (from $17 to
-- $20 on, where the claims of this process begin).
--
-- `hand_off_eligible.sql` comes before; `record_limit_deltas.sql`, `complete_tasks.sql` and
-- `hand_off_result.sql` follow.
, first AS MATERIALIZED (
    -- What is ready first in each lane.
    SELECT array_agg(lane.id) AS lanes, array_agg(ready.rank) AS ranks, array_agg(ready.tag) AS tags,
           array_agg(ready.task) AS tasks, min(ARRAY[ready.rank, ready.tag, ready.task]) AS key
    FROM eligible CROSS JOIN LATERAL unnest(eligible.open) AS lane (id)
    CROSS JOIN LATERAL (SELECT array_position($17::bigint[], lane.id) AS place) AS floor
    CROSS JOIN LATERAL (
        SELECT r.rank, r.tag, r.task FROM tidegate.ready r
        WHERE r.lane = lane.id
          AND (r.rank, r.tag, r.task) >= (
              coalesce(($18::bigint[])[floor.place], -9223372036854775808),
              coalesce(($19::bigint[])[floor.place], 0), coalesce(($20::bigint[])[floor.place], 0))
        ORDER BY r.rank, r.tag, r.task LIMIT 1
    ) AS ready
), relay AS MATERIALIZED (
    SELECT eligible.now, eligible.next_due, eligible.has_gate_work, eligible.open, eligible.open_attempts,
           eligible.open_timeouts, eligible.last_task, next.*,
           eligible.is_so AND next.are_served
           AND coalesce((SELECT key > next.last FROM first), true) AS is_on,
           eligible.is_noted AND NOT eligible.has_gate_work AND next.are_served
           AND coalesce((SELECT bool_and(allows_hand_off) FROM given), false) AS may_admit
    FROM eligible CROSS JOIN next
), lease AS (
    INSERT INTO tidegate.leases (token, worker, expires_at, started_at, tasks, limits, numbers)
    SELECT nextval('tidegate.tokens'), $3, now + $4, now, holders, limits, numbers
    FROM relay WHERE is_on AND slots > 0
    RETURNING token, expires_at
)
