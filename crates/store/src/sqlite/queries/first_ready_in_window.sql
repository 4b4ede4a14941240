-- The first ready task that holds a slot of a job's limit and does not have the rank of the reserve.
select ready.lane, ready.rank, ready.tag, ready.task, ready.limits_version, ready.holds_slots, ready.ready_at
from slots cross join ready on ready.task = slots.task and ready.has_submit_key = 0
where slots.limit_id = ?1 and slots.task is not null and ready.rank <> ?2
order by ready.rank, ready.tag, ready.task limit 1
