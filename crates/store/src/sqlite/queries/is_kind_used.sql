-- Whether anybody registers or serves a kind, whether it has a task, and whether its limit is more
-- than registered or in use.
select exists (
        select 1 from registrations cross join workers on workers.id = registrations.worker
        where registrations.group_name = ?1 and workers.alive_until > ?2)
    or exists (
        select 1 from lanes cross join worker_lanes on worker_lanes.lane = lanes.id
        where lanes.kind = ?1 and worker_lanes.served_until > ?2)
    or exists (
        select 1 from limits
        where name = 'group:' || ?1
            and (source not in ('unset', 'registration')
                or coalesce(base_source, 'unset') not in ('unset', 'registration')
                or held > 0 or waiting > 0))
    or exists (select 1 from tasks where lane in (select id from lanes where kind = ?1))
