select started_at from running where token = ?1 and task = ?2
