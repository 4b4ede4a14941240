select worker.id, worker.alive_until,
    (select count(*) from lease cross join running on running.token = lease.token
     where lease.worker = worker.id),
    worker.report
from worker where alive_until > ?1 order by worker.id
