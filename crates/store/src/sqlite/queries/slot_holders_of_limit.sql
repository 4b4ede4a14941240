select slot.number, slot.task, lane.kind
from slot left join task on task.id = slot.task left join lane on lane.id = task.lane
where slot.limit_id = ?1 and slot.task is not null order by slot.number limit ?2
