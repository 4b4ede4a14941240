select id, lane, group_name, job, workflow, unique_key, weight, spent, deaths
from task where state is null order by id
