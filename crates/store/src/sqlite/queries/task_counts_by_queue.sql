select lane.queue, state, count(*) from (
    select 'scheduled' as state, task.lane from scheduled cross join task on task.id = scheduled.task
    union all
    select 'pending', task.lane from arrived cross join task on task.id = arrived.task
    union all
    select 'pending', lane from ready
    union all
    select 'blocked', lane from line
    union all
    select 'processing', task.lane from running cross join task on task.id = running.task
) place cross join lane on lane.id = place.lane
group by lane.queue, state
