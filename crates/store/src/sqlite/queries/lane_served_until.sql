select served_until from worker_lanes where lane = ?1 and worker = ?2
