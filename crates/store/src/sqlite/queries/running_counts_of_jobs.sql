-- How many tasks of every job run, where some do.
select limits.id, count(*)
from running
    cross join slots on slots.task = running.task
    cross join limits on limits.id = slots.limit_id
where limits.name like 'job:%'
group by limits.id
