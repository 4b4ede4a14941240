-- Whether anybody registers or serves a kind, whether it has a task, and whether its limit is more
-- than registered or in use.
select exists (
        select 1 from registration cross join worker on worker.id = registration.worker
        where registration.group_name = ?1 and worker.alive_until > ?2)
    or exists (
        select 1 from lane cross join worker_lane on worker_lane.lane = lane.id
        where lane.kind = ?1 and worker_lane.served_until > ?2)
    or exists (
        select 1 from limits
        where name = 'group:' || ?1
            and (source not in ('unset', 'registration')
                or coalesce(base_source, 'unset') not in ('unset', 'registration')
                or held > 0 or waiting > 0))
    or exists (select 1 from task where lane in (select id from lane where kind = ?1))
