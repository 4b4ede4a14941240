select job, state, count(*) from (
    select job, state from tasks where job is not null and state is not null
    union all
    select tasks.job, 'scheduled' from scheduled cross join tasks on tasks.id = scheduled.task
    where tasks.job is not null
    union all
    select tasks.job, 'pending' from inbox cross join tasks on tasks.id = inbox.task
    where tasks.job is not null
    union all
    select tasks.job, 'pending' from ready cross join tasks on tasks.id = ready.task
    where tasks.job is not null
    union all
    select tasks.job, 'blocked' from waiters cross join tasks on tasks.id = waiters.task
    where tasks.job is not null
    union all
    select tasks.job, 'processing' from running cross join tasks on tasks.id = running.task
    where tasks.job is not null
)
group by job, state
