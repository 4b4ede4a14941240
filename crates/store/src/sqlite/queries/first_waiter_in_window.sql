-- The first task of a job that is past the job's line, stands in the line of another limit, and does not
-- have the rank of the reserve.
select waiters.limit_id, waiters.wait_reason, waiters.rank, waiters.tag, waiters.admission_seq, waiters.task,
    waiters.lane, waiters.queue_switches, waiters.in_job_window, waiters.due_at
from tasks cross join waiters on waiters.task = tasks.id
where tasks.job = ?1 and tasks.state is null and waiters.in_job_window = 1 and waiters.rank <> ?2
order by waiters.rank, waiters.tag, waiters.task limit 1
