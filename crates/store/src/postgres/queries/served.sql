SELECT DISTINCT l.lane
FROM tidegate.worker_lanes l JOIN tidegate.workers w ON w.id = l.worker
WHERE w.alive_until > $1
