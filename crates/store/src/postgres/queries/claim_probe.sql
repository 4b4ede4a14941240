-- All that a claim decides by before it takes anything: the time, the lanes the worker serves
-- that are open now (neither paused nor outside their hours), whether anything waits at the gate, and
-- whether the worker has to be noted. Each answer is the head of an index; nothing is read that is not
-- looked at next. What is seen is in `seen`; a statement follows that uses it.
--
-- What has come and gone stays in the index until the server has cleaned up, so a process looks for
-- what has come from where it last found nothing ($6).
WITH moment AS MATERIALIZED (
    SELECT coalesce($5::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
), open AS MATERIALIZED (
    -- Side by side: a lane, and what its kind says of tasks that say nothing themselves.
    SELECT coalesce(array_agg(l.id), '{}') AS ids, array_agg(k.max_attempts) AS attempts,
           array_agg(k.timeout_ms) AS timeouts,
           -- While at least three quarters of the lease are left, the worker is not noted again.
           coalesce(bool_and(l.id IN (
               SELECT lane FROM tidegate.worker_lanes
               WHERE worker = $3 AND served_until >= (SELECT now FROM moment) + $4::bigint / 4 * 3
           )), true) AS is_noted
    FROM moment
    CROSS JOIN tidegate.lanes l
    LEFT JOIN tidegate.kinds k ON k.name = l.kind
    CROSS JOIN LATERAL (SELECT mod(moment.now, 86400000) AS ms) AS of_day
    WHERE l.queue = ANY ($1) AND l.kind = ANY ($2)
      AND l.queue <> ALL (ARRAY (SELECT name FROM tidegate.paused_queues WHERE name = ANY ($1)))
      AND CASE
          WHEN k.window_start_ms IS NULL OR k.window_end_ms IS NULL THEN true
          WHEN k.window_start_ms < k.window_end_ms
          THEN of_day.ms >= k.window_start_ms AND of_day.ms < k.window_end_ms
          ELSE of_day.ms >= k.window_start_ms OR of_day.ms < k.window_end_ms
      END
), seen AS MATERIALIZED (
    SELECT c.virtual_time, c.limits_version, moment.now,
           open.ids AS open, open.attempts AS open_attempts, open.timeouts AS open_timeouts,
           open.is_noted,
           -- Whether anything waits at the gate: what has come or is due, a limit with room or one that
           -- is due to be looked at, a task that nobody served.
           -- A task that became due a moment ago does not count yet: it is admitted together with others.
           EXISTS (SELECT FROM tidegate.inbox WHERE task >= $6)
               OR coalesce(due.task_at <= moment.now - due.grace, false)
               OR coalesce(due.recheck_at <= moment.now, false)
               OR EXISTS (SELECT FROM tidegate.limits WHERE dirty)
               OR EXISTS (SELECT FROM tidegate.limit_deltas WHERE needs_drain)
               -- Lane by lane: the planner would look up all of them at once by the wait reason alone, in
               -- the index of all that wait.
               OR EXISTS (SELECT FROM unnest(open.ids) AS served (id) CROSS JOIN LATERAL (
                   SELECT FROM tidegate.waiters WHERE wait_reason = 4 AND lane = served.id LIMIT 1) AS parked)
               AS has_gate_work,
           least(due.task_at, due.recheck_at) AS next_due,
           -- Whatever comes after this look has nearly always a higher id.
           (SELECT last_value FROM tidegate.task_ids) AS last_task
    FROM tidegate.counters c
    CROSS JOIN moment
    CROSS JOIN open
    CROSS JOIN LATERAL (
        SELECT (SELECT run_at FROM tidegate.scheduled ORDER BY run_at, task LIMIT 1) AS task_at,
               least(
                   (SELECT recheck_at FROM tidegate.limit_deltas WHERE recheck_at IS NOT NULL
                    ORDER BY recheck_at LIMIT 1),
                   (SELECT recheck_at FROM tidegate.limits WHERE recheck_at IS NOT NULL ORDER BY recheck_at LIMIT 1)
               ) AS recheck_at,
               -- Set for each connection of the verbs; 0 elsewhere.
               coalesce(nullif(current_setting('tidegate.due_grace_ms', true), '')::bigint, 0) AS grace OFFSET 0
    ) AS due
)
