-- Ready tasks that hold slots of a limit, those with the highest numbers first; one that holds several
-- comes with each.
select ready.lane, ready.rank, ready.tag, ready.task, ready.limits_version, ready.holds_slots, ready.ready_at
from slots cross join ready on ready.task = slots.task and ready.has_submit_key = 0
where slots.limit_id = ?1 and slots.task is not null
order by slots.number desc limit ?2
