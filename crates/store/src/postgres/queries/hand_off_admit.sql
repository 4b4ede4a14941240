-- Ends attempts and admits the next with their slots: they are ready, and a claim in the same
-- transaction takes whoever is first. What finds nobody in line is given back.
--
-- It is what a finish would do. Nothing is done at all where this worker does not serve those next in
-- line, or where somebody in a line had no worker: that may be one of whose kind nothing was looked at.
--
-- `hand_off_eligible.sql` comes before; `record_limit_deltas.sql`, `complete_tasks.sql` and
-- `hand_off_admit_result.sql` follow.
, relay AS MATERIALIZED (
    SELECT eligible.now, eligible.next_due, eligible.has_gate_work, eligible.limits_version, next.*,
           eligible.is_so AND next.are_served
           AND NOT EXISTS (SELECT FROM given CROSS JOIN LATERAL (
               SELECT FROM tidegate.waiters WHERE limit_id = given.id AND wait_reason >= 4 LIMIT 1
           ) AS parked) AS is_on
    FROM eligible CROSS JOIN next
), ready AS (
    INSERT INTO tidegate.ready (task, lane, rank, tag, limits_version, holds_slots, ready_at)
    SELECT head.task, head.lane, head.rank, head.tag, relay.limits_version, true, relay.now
    FROM relay CROSS JOIN head WHERE relay.is_on
), written AS (
    INSERT INTO tidegate.slots (limit_id, number, task)
    SELECT head.limit_id, head.number, head.task FROM relay CROSS JOIN head WHERE relay.is_on
)
