-- Left to itself the planner walks over every held slot, since both indexes have the same order.
select number from slots indexed by slots_free
where limit_id = ?1 and task is null order by number limit ?2
