select lane, group_name, job, workflow, unique_key, weight, priority, spent, max_attempts, deaths,
    created_at, finished_at, error
from task where id = ?1
