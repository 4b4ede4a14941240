-- How many tasks of every job run, where some do.
select limits.id, count(*)
from running
    cross join slot on slot.task = running.task
    cross join limits on limits.id = slot.limit_id
where limits.name like 'job:%'
group by limits.id
