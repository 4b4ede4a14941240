select worker_lane.worker, lane.queue, lane.kind
from worker_lane cross join lane on lane.id = worker_lane.lane
where worker_lane.served_until > ?1
order by worker_lane.worker, lane.queue, lane.kind
