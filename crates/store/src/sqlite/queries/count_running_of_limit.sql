select count(*) from running
where exists (select 1 from slots where slots.task = running.task and slots.limit_id = ?1)
