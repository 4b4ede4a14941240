select distinct registration.group_name
from registration cross join worker on worker.id = registration.worker
where worker.alive_until > ?1
order by registration.group_name
