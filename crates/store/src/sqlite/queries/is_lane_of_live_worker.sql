-- One that is full has not asked for a while, and will.
select exists (select 1 from worker_lanes cross join workers on workers.id = worker_lanes.worker
    where worker_lanes.lane = ?1 and workers.alive_until > ?2)
