SELECT w.id, w.alive_until, w.report::text AS report, n.queue, n.kind,
       (SELECT count(*) FROM tidegate.leases e JOIN tidegate.running_attempts u ON u.token = e.token
        WHERE e.worker = w.id) AS running
FROM tidegate.workers w
LEFT JOIN tidegate.worker_lanes s ON s.worker = w.id
LEFT JOIN tidegate.lanes n ON n.id = s.lane
WHERE w.alive_until > $1
ORDER BY w.id, n.queue, n.kind
