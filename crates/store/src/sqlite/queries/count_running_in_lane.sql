select count(*) from running cross join task on task.id = running.task
where task.lane = ?1
