select workers.id, workers.alive_until,
    (select count(*) from leases cross join running on running.token = leases.token
     where leases.worker = workers.id),
    workers.report
from workers where alive_until > ?1 order by workers.id
