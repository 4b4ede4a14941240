select registration.worker, registration.capacity
from registration cross join worker on worker.id = registration.worker
where registration.group_name = ?1 and worker.alive_until > ?2
order by registration.number
