select count(*) from running cross join tasks on tasks.id = running.task
where tasks.lane = ?1
