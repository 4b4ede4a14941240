select served_until from worker_lane where lane = ?1 and worker = ?2
