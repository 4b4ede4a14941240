select exists (select 1 from worker_lanes where lane = ?1 and served_until > ?2)
