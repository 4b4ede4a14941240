-- Admits every due task, or none: a task without limits becomes ready, and a task that needs one slot of
-- one limit joins the wait queue of the limit. Every other task needs the general path.
--
-- A task joins a wait queue only if at least max(1, $1) waiters come before it. $1 is the number of slots that
-- the caller gives back next. Then the number of free slots does not change the result: no task overtakes the
-- head, and the slots of the caller go to earlier waiters. `lock_due_fast.sql` holds the bucket of the limit
-- exclusively, so no hand-off changes the limit meanwhile. If a limit is dirty or due, or one of its deltas
-- needs a drain or is due, the general path handles that first.
WITH seen AS MATERIALIZED (
    SELECT virtual_time, limits_version,
           nullif(current_setting('tidegate.admission_time', true), '')::bigint AS now,
           nullif(current_setting('tidegate.locked_buckets', true), '')::int[] AS buckets
    FROM tidegate.counters
), due AS MATERIALIZED (
    -- A task that a concurrent transaction cancels is left to it.
    SELECT ctid AS row, task, run_at FROM tidegate.scheduled
    WHERE run_at <= (SELECT now FROM seen)
    ORDER BY run_at, task LIMIT 1000 FOR UPDATE SKIP LOCKED
), served AS MATERIALIZED (
    -- A task that no live worker serves parks for another wait reason: only the general path does that.
    SELECT coalesce(array_agg(lane), '{}') AS lanes FROM tidegate.worker_lanes
    WHERE served_until > (SELECT now FROM seen)
), found AS MATERIALIZED (
    SELECT due.row, due.task, due.run_at, t.*, l.id AS limit_id, l.is_settled
    FROM due CROSS JOIN seen
    LEFT JOIN LATERAL (
        -- A level of priority is worth a minute of waiting.
        SELECT lane, weight, due_at, due_at / 60000 - priority AS rank, coalesce(group_name, kind) AS group_name,
               -- The division truncates, and the rules use div_euclid: they agree only for due_at >= 0.
               job IS NULL AND workflow IS NULL AND due_at >= 0 AS is_alone
        FROM tidegate.tasks WHERE id = due.task OFFSET 0
    ) AS t ON true
    LEFT JOIN LATERAL (
        SELECT id, NOT dirty AND coalesce(recheck_at > seen.now, true) AND NOT EXISTS (
                   SELECT FROM tidegate.limit_deltas p
                   WHERE p.limit_id = limits.id AND (p.needs_drain OR p.recheck_at <= seen.now)) AS is_settled
        FROM tidegate.limits WHERE name = 'group:' || t.group_name OFFSET 0
    ) AS l ON true
), last AS MATERIALIZED (
    -- The last waiter that must come before the due tasks, for each limit.
    SELECT needed.limit_id, waiter.wait_reason, waiter.rank, waiter.tag
    FROM (SELECT DISTINCT limit_id FROM found WHERE limit_id IS NOT NULL) AS needed
    CROSS JOIN LATERAL (
        SELECT wait_reason, rank, tag FROM tidegate.waiters WHERE limit_id = needed.limit_id AND wait_reason <= 1
        ORDER BY wait_reason, rank, tag, admission_seq OFFSET greatest($1::bigint, 1) - 1 LIMIT 1
    ) AS waiter
), task AS MATERIALIZED (
    SELECT found.row, found.task, found.run_at, found.lane, found.due_at, found.rank, found.limit_id,
           found.is_alone AND CASE
               WHEN found.limit_id IS NULL THEN true
               ELSE found.weight = 1 AND found.is_settled AND mod(found.limit_id, 256)::int = ANY (seen.buckets)
                    AND found.lane = ANY ((SELECT lanes FROM served)::bigint[])
                    AND coalesce((last.wait_reason, last.rank, last.tag) <= (1, found.rank, seen.virtual_time), false)
           END AS is_eligible
    FROM found CROSS JOIN seen LEFT JOIN last ON last.limit_id = found.limit_id
), verdict AS MATERIALIZED (
    SELECT count(*) AS due, coalesce(bool_and(coalesce(is_eligible, false)), true) AS is_on FROM task
), admitted AS MATERIALIZED (
    SELECT task.* FROM task WHERE (SELECT is_on FROM verdict) ORDER BY run_at, task
), gone AS (
    DELETE FROM tidegate.scheduled WHERE ctid = ANY (ARRAY (SELECT row FROM admitted))
), ready AS (
    INSERT INTO tidegate.ready (task, lane, rank, tag, limits_version, holds_slots, ready_at)
    SELECT task, lane, rank, seen.virtual_time, seen.limits_version, false, seen.now
    FROM admitted CROSS JOIN seen WHERE limit_id IS NULL
), parked AS (
    INSERT INTO tidegate.waiters (task, limit_id, wait_reason, rank, tag, admission_seq, lane, queue_switches,
                                  in_job_window, due_at, single_slot)
    SELECT task, limit_id, 1, rank, seen.virtual_time, nextval('tidegate.admission_seqs'), lane, 0, false, due_at, true
    FROM admitted CROSS JOIN seen WHERE limit_id IS NOT NULL
), joined AS MATERIALIZED (
    SELECT limit_id, count(*) AS tasks FROM admitted WHERE limit_id IS NOT NULL GROUP BY limit_id
), counted AS (
    UPDATE tidegate.limits l
    SET waiting = l.waiting + (SELECT tasks FROM joined WHERE limit_id = l.id),
        parked_total = l.parked_total + (SELECT tasks FROM joined WHERE limit_id = l.id)
    WHERE l.id = ANY (ARRAY (SELECT limit_id FROM joined))
)
-- Lists side by side: the tasks that are ready now.
SELECT seen.now, seen.virtual_time, seen.limits_version, verdict.is_on,
       (SELECT count(*) FROM admitted WHERE limit_id IS NOT NULL) AS parked,
       ready.tasks, ready.lanes, ready.ranks,
       (SELECT run_at FROM tidegate.scheduled WHERE run_at > seen.now ORDER BY run_at, task LIMIT 1) AS next_due
FROM seen CROSS JOIN verdict CROSS JOIN (
    SELECT array_agg(task ORDER BY lane, rank, task) AS tasks, array_agg(lane ORDER BY lane, rank, task) AS lanes,
           array_agg(rank ORDER BY lane, rank, task) AS ranks
    FROM admitted WHERE limit_id IS NULL
) AS ready
