-- Ready tasks that hold slots of a limit, those with the highest numbers first; one that holds several
-- comes with each.
select ready.lane, ready.rank, ready.tag, ready.task, ready.stamp, ready.gated, ready.since
from slot cross join ready on ready.task = slot.task and ready.at_submit = 0
where slot.limit_id = ?1 and slot.task is not null
order by slot.number desc limit ?2
