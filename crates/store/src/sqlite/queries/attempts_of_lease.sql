-- What a worker gets, and what finish will ask for: read once, while the rows are at hand.
select tasks.id, tasks.lane, tasks.group_name, tasks.job, tasks.workflow, tasks.weight, tasks.priority,
    tasks.max_attempts, tasks.attempts_used, tasks.crashes, tasks.due_at, tasks.on_failure,
    tasks.timeout_ms, tasks.payload, running.holds_slots, running.ready_at, tasks.trace
from running cross join tasks on tasks.id = running.task
where running.token = ?1 order by running.task
