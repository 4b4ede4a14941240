insert into inbox (task, job)
select id, case when workflow is null then job end from tasks where id = ?1
