insert into arrived (task, job)
select id, case when workflow is null then job end from task where id = ?1
