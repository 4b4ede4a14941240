SELECT t.created_at, t.finished_at, t.state, sc.run_at, a.task IS NOT NULL AS is_arrived,
       r.task IS NOT NULL AS is_ready, l.task IS NOT NULL AS is_blocked,
       u.started_at, e.worker, e.expires_at,
       EXISTS (SELECT FROM tidegate.worker_lanes w
               WHERE w.lane = t.lane AND w.served_until > $2) AS is_served
FROM tidegate.tasks t
LEFT JOIN tidegate.scheduled sc ON sc.task = t.id
LEFT JOIN tidegate.arrived a ON a.task = t.id
LEFT JOIN tidegate.ready r ON r.task = t.id
LEFT JOIN tidegate.line l ON l.task = t.id
LEFT JOIN tidegate.running u ON u.task = t.id
LEFT JOIN tidegate.leases e ON e.token = u.token
WHERE t.id = $1
