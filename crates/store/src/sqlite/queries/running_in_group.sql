select running.task, running.token
from running cross join tasks on tasks.id = running.task join lanes on lanes.id = tasks.lane
where coalesce(tasks.group_name, lanes.kind) = ?1
order by running.task, running.token
