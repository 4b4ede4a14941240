select workflow, state, count(*) from (
    select workflow, state from tasks where workflow is not null and state is not null
    union all
    select tasks.workflow, 'scheduled' from scheduled cross join tasks on tasks.id = scheduled.task
    where tasks.workflow is not null
    union all
    select tasks.workflow, 'pending' from inbox cross join tasks on tasks.id = inbox.task
    where tasks.workflow is not null
    union all
    select tasks.workflow, 'pending' from ready cross join tasks on tasks.id = ready.task
    where tasks.workflow is not null
    union all
    select tasks.workflow, 'blocked' from waiters cross join tasks on tasks.id = waiters.task
    where tasks.workflow is not null
    union all
    select tasks.workflow, 'processing' from running cross join tasks on tasks.id = running.task
    where tasks.workflow is not null
)
group by workflow, state
