select worker_lane.worker, lane.queue, lane.kind
from worker_lane cross join lane on lane.id = worker_lane.lane
order by worker_lane.worker, lane.queue, lane.kind
