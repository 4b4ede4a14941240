select distinct registrations.group_name
from registrations cross join workers on workers.id = registrations.worker
where workers.alive_until > ?1
order by registrations.group_name
