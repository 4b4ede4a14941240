select registrations.worker, registrations.capacity
from registrations cross join workers on workers.id = registrations.worker
where registrations.group_name = ?1 and workers.alive_until > ?2
order by registrations.seq
