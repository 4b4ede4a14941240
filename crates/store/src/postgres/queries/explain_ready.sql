SELECT r.ready_at, n.queue, n.kind,
       EXISTS (SELECT FROM tidegate.worker_lanes s JOIN tidegate.workers w ON w.id = s.worker
               WHERE s.lane = r.lane AND w.alive_until > $2) AS is_served,
       (SELECT count(*) FROM tidegate.ready o
        WHERE o.lane = r.lane AND (o.rank, o.tag, o.task) < (r.rank, r.tag, r.task)) AS tasks_before
FROM tidegate.ready r JOIN tidegate.lanes n ON n.id = r.lane
WHERE r.task = $1
