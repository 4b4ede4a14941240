select slots.number, slots.task, lanes.kind
from slots left join tasks on tasks.id = slots.task left join lanes on lanes.id = tasks.lane
where slots.limit_id = ?1 and slots.task is not null order by slots.number limit ?2
