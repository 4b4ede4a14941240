WITH t AS (
    SELECT id, lane, kind, queue, group_name, created_at, NULL::bigint AS finished_at, NULL::int AS state
    FROM tidegate.tasks WHERE id = $1
    UNION ALL
    SELECT id, lane, kind, queue, group_name, created_at, finished_at, state
    FROM tidegate.finished WHERE id = $1
)
SELECT t.created_at, t.finished_at, t.state, sc.run_at, a.task IS NOT NULL AS is_arrived,
       r.task IS NOT NULL AS is_ready, l.task IS NOT NULL AS is_blocked,
       u.started_at, e.worker, e.expires_at,
       -- One that is full has not asked for a while, and will.
       EXISTS (SELECT FROM tidegate.worker_lanes s JOIN tidegate.workers w ON w.id = s.worker
               WHERE s.lane = t.lane AND w.alive_until > $2) AS is_served,
       q.paused_at, p.tasks AS pace_tasks, p.total_ms AS pace_total_ms,
       -- Tasks that run and whose ends are waited for: those that hold slots of the limit, or
       -- those of the lane.
       CASE WHEN l.task IS NOT NULL THEN
           (SELECT count(*) FROM tidegate.running_attempts o WHERE EXISTS (
               SELECT FROM tidegate.held_slots s WHERE s.task = o.task AND s.limit_id = l.limit_id))
       WHEN r.task IS NOT NULL THEN
           (SELECT count(*) FROM tidegate.running_attempts o
            JOIN tidegate.tasks ot ON ot.id = o.task WHERE ot.lane = t.lane)
       ELSE 0 END AS running
FROM t
LEFT JOIN tidegate.scheduled sc ON sc.task = t.id
LEFT JOIN tidegate.inbox a ON a.task = t.id
LEFT JOIN tidegate.ready r ON r.task = t.id
LEFT JOIN tidegate.waiters l ON l.task = t.id
LEFT JOIN tidegate.running_attempts u ON u.task = t.id
LEFT JOIN tidegate.leases e ON e.token = u.token
LEFT JOIN tidegate.paused_queues q ON q.name = t.queue
LEFT JOIN tidegate.run_times p ON p.group_name = coalesce(t.group_name, t.kind)
