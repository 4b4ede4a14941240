SELECT DISTINCT lane FROM tidegate.worker_lanes WHERE served_until > $1
