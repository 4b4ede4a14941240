-- Since when the first ready task of every job is ready, where there is one. Each is found by its slot.
select limits.id, min(ready.since)
from limits
    cross join slot on slot.limit_id = limits.id and slot.task is not null
    cross join ready on ready.task = slot.task and ready.at_submit = 0
where limits.name like 'job:%'
group by limits.id
