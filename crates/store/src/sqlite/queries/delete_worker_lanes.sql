delete from worker_lane where worker = ?1
