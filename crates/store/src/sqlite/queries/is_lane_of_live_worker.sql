-- One that is full has not asked for a while, and will.
select exists (select 1 from worker_lane cross join worker on worker.id = worker_lane.worker
    where worker_lane.lane = ?1 and worker.alive_until > ?2)
