SELECT r.worker, r.group_name, r.capacity
FROM tidegate.registrations r
JOIN tidegate.workers w ON w.id = r.worker
WHERE w.alive_until > $1
