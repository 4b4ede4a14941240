select waiters.task, lanes.kind, lanes.queue, waiters.wait_reason, tasks.weight, waiters.due_at
from waiters cross join tasks on tasks.id = waiters.task cross join lanes on lanes.id = tasks.lane
where waiters.limit_id = ?1
order by waiters.wait_reason, waiters.rank, waiters.tag, waiters.admission_seq limit ?2
