select workflow, state, count(*) from (
    select workflow, state from task where workflow is not null and state is not null
    union all
    select task.workflow, 'scheduled' from scheduled cross join task on task.id = scheduled.task
    where task.workflow is not null
    union all
    select task.workflow, 'pending' from arrived cross join task on task.id = arrived.task
    where task.workflow is not null
    union all
    select task.workflow, 'pending' from ready cross join task on task.id = ready.task
    where task.workflow is not null
    union all
    select task.workflow, 'blocked' from line cross join task on task.id = line.task
    where task.workflow is not null
    union all
    select task.workflow, 'processing' from running cross join task on task.id = running.task
    where task.workflow is not null
)
group by workflow, state
