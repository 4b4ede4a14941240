select running.task, slots.limit_id, slots.number
from running cross join slots on slots.task = running.task
where running.token = ?1 and running.holds_slots = 1
order by running.task, slots.limit_id, slots.number
