delete from worker_lanes where worker = ?1
