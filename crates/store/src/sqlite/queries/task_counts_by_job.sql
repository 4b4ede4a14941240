select job, state, count(*) from (
    select job, state from task where job is not null and state is not null
    union all
    select task.job, 'scheduled' from scheduled cross join task on task.id = scheduled.task
    where task.job is not null
    union all
    select task.job, 'pending' from arrived cross join task on task.id = arrived.task
    where task.job is not null
    union all
    select task.job, 'pending' from ready cross join task on task.id = ready.task
    where task.job is not null
    union all
    select task.job, 'blocked' from line cross join task on task.id = line.task
    where task.job is not null
    union all
    select task.job, 'processing' from running cross join task on task.id = running.task
    where task.job is not null
)
group by job, state
