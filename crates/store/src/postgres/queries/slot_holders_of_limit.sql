SELECT s.number, s.task, coalesce(t.kind, '') AS kind, e.worker, e.expires_at
FROM tidegate.held_slots s
LEFT JOIN tidegate.tasks t ON t.id = s.task
LEFT JOIN tidegate.running_attempts u ON u.task = s.task
LEFT JOIN tidegate.leases e ON e.token = u.token
WHERE s.limit_id = $1
ORDER BY s.number LIMIT $2
