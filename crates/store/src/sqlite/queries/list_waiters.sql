select line.task, lane.kind, lane.queue, line.class, task.weight, line.since
from line cross join task on task.id = line.task cross join lane on lane.id = task.lane
where line.limit_id = ?1
order by line.class, line.rank, line.tag, line.place limit ?2
