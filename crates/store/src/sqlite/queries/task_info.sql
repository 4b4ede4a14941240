select id, lane, group_name, job, workflow, weight, priority, max_attempts, attempts_used, crashes,
    due_at, on_failure
from tasks where id = ?1 and state is null
