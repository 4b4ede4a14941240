select lanes.queue, state, count(*) from (
    select 'scheduled' as state, tasks.lane from scheduled cross join tasks on tasks.id = scheduled.task
    union all
    select 'pending', tasks.lane from inbox cross join tasks on tasks.id = inbox.task
    union all
    select 'pending', lane from ready
    union all
    select 'blocked', lane from waiters
    union all
    select 'processing', tasks.lane from running cross join tasks on tasks.id = running.task
) place cross join lanes on lanes.id = place.lane
group by lanes.queue, state
