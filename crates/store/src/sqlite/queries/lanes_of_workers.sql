select worker_lanes.worker, lanes.queue, lanes.kind
from worker_lanes cross join lanes on lanes.id = worker_lanes.lane
order by worker_lanes.worker, lanes.queue, lanes.kind
