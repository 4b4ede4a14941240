select registrations.worker, registrations.group_name, registrations.capacity
from registrations cross join workers on workers.id = registrations.worker
where workers.alive_until > ?1
