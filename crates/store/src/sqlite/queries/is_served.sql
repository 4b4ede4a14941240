select exists (
    select 1 from worker_lane as served join worker on worker.id = served.worker
    where served.lane = ?1 and worker.alive_until > ?2
)
