select count(*) from running
where exists (select 1 from slot where slot.task = running.task and slot.limit_id = ?1)
