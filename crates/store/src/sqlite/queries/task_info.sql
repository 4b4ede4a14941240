select id, lane, group_name, job, workflow, weight, priority, max_attempts, spent, deaths,
    arrival, on_failure
from task where id = ?1 and state is null
