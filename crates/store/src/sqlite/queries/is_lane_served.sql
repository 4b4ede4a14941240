select exists (select 1 from worker_lane where lane = ?1 and served_until > ?2)
