select registration.worker, registration.group_name, registration.capacity
from registration cross join worker on worker.id = registration.worker
where worker.alive_until > ?1
