-- Since when the first ready task of every job is ready, where there is one. Each is found by its slot.
select limits.id, min(ready.ready_at)
from limits
    cross join slots on slots.limit_id = limits.id and slots.task is not null
    cross join ready on ready.task = slots.task and ready.has_submit_key = 0
where limits.name like 'job:%'
group by limits.id
