-- The first task of a job that is past the job's line, stands in the line of another limit, and does not
-- have the rank of the reserve.
select line.limit_id, line.class, line.rank, line.tag, line.place, line.task, line.lane, line.moves,
    line.passed, line.since
from task cross join line on line.task = task.id
where task.job = ?1 and task.state is null and line.passed = 1 and line.rank <> ?2
order by line.rank, line.tag, line.task limit 1
