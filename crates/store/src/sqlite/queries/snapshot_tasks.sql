select id, lane, group_name, job, workflow, unique_key, weight, attempts_used, crashes
from tasks where state is null order by id
