-- What a worker gets, and what finish will ask for: read once, while the rows are at hand.
select task.id, task.lane, task.group_name, task.job, task.workflow, task.weight, task.priority,
    task.max_attempts, task.spent, task.deaths, task.arrival, task.on_failure,
    task.timeout_ms, task.payload, running.gated, running.ready_at, task.trace
from running cross join task on task.id = running.task
where running.token = ?1 order by running.task
