select running.task, running.token
from running cross join task on task.id = running.task join lane on lane.id = task.lane
where coalesce(task.group_name, lane.kind) = ?1
order by running.task, running.token
