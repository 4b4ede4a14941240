select running.task, slot.limit_id, slot.number
from running cross join slot on slot.task = running.task
where running.token = ?1 and running.gated = 1
order by running.task, slot.limit_id, slot.number
