select task.id from task cross join lane on lane.id = task.lane
where task.id > ?1
    and (?2 is null or lane.kind = ?2) and (?3 is null or lane.queue = ?3)
    and (?4 is null or task.job = ?4) and (?5 is null or task.workflow = ?5)
    and (?7 is null or coalesce(task.group_name, lane.kind) = ?7)
order by task.id limit ?6
