select tasks.id from waiters cross join tasks on tasks.id = waiters.task cross join lanes on lanes.id = tasks.lane
where waiters.task > ?1
    and (?2 is null or lanes.kind = ?2) and (?3 is null or lanes.queue = ?3)
    and (?4 is null or tasks.job = ?4) and (?5 is null or tasks.workflow = ?5)
    and (?7 is null or coalesce(tasks.group_name, lanes.kind) = ?7)
order by waiters.task limit ?6
