-- The first ready task that holds a slot of a job's limit and does not have the rank of the reserve.
select ready.lane, ready.rank, ready.tag, ready.task, ready.stamp, ready.gated, ready.since
from slot cross join ready on ready.task = slot.task and ready.at_submit = 0
where slot.limit_id = ?1 and slot.task is not null and ready.rank <> ?2
order by ready.rank, ready.tag, ready.task limit 1
