select lane, group_name, job, workflow, unique_key, weight, priority, attempts_used, max_attempts, crashes,
    created_at, finished_at, error
from tasks where id = ?1
