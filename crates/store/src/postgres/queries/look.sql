-- All that a claim decides by before it takes anything: the time, the lanes the worker serves
-- that are open now (neither paused nor outside their hours), whether anything waits at the gate, and
-- whether the worker has to be noted. Each answer is the head of an index; nothing is read that is not
-- looked at next. What is seen is in `seen`; a statement follows that uses it.
WITH moment AS MATERIALIZED (
    SELECT coalesce($5::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
), open AS MATERIALIZED (
    SELECT l.id, k.max_attempts, k.timeout_ms,
           -- Noted for at least half of the lease, it need not be noted again.
           EXISTS (SELECT FROM tidegate.worker_lanes w
                   WHERE w.worker = $3 AND w.lane = l.id
                     AND w.served_until >= moment.now + $4::bigint / 2) AS is_noted
    FROM moment
    CROSS JOIN tidegate.lanes l
    LEFT JOIN tidegate.kinds k ON k.name = l.kind
    CROSS JOIN LATERAL (SELECT mod(moment.now, 86400000) AS ms) AS of_day
    WHERE l.queue = ANY ($1) AND l.kind = ANY ($2)
      AND NOT EXISTS (SELECT FROM tidegate.queues q WHERE q.name = l.queue)
      AND CASE
          WHEN k.window_start_ms IS NULL OR k.window_end_ms IS NULL THEN true
          WHEN k.window_start_ms < k.window_end_ms
          THEN of_day.ms >= k.window_start_ms AND of_day.ms < k.window_end_ms
          ELSE of_day.ms >= k.window_start_ms OR of_day.ms < k.window_end_ms
      END
), opened AS MATERIALIZED (
    SELECT array_agg(id) AS ids, array_agg(max_attempts) AS attempts,
           array_agg(timeout_ms) AS timeouts, bool_and(is_noted) AS is_noted
    FROM (SELECT * FROM open ORDER BY id) AS open
), seen AS MATERIALIZED (
    SELECT c.virtual_time, c.limits_version, moment.now,
           -- Side by side: a lane, and what its kind says of tasks that say nothing themselves.
           coalesce(opened.ids, '{}') AS open, opened.attempts AS open_attempts,
           opened.timeouts AS open_timeouts, coalesce(opened.is_noted, true) AS is_noted,
           -- Whether anything waits at the gate: what has come or is due, a limit with room, a
           -- task that nobody served.
           EXISTS (SELECT FROM tidegate.arrived) OR coalesce(due.run_at <= moment.now, false)
               OR EXISTS (SELECT FROM tidegate.limits WHERE dirty)
               OR EXISTS (SELECT FROM tidegate.passes WHERE urgent)
               OR EXISTS (
                   SELECT FROM open CROSS JOIN LATERAL (
                       SELECT FROM tidegate.line WHERE class = 4 AND lane = open.id LIMIT 1
                   ) AS parked
               ) AS has_gate_work,
           due.run_at AS next_due
    FROM tidegate.counters c
    CROSS JOIN moment
    CROSS JOIN opened
    LEFT JOIN LATERAL (
        SELECT run_at FROM tidegate.scheduled ORDER BY run_at, task LIMIT 1
    ) AS due ON true
)
