update running set cancel_requested = 1 where token = ?1 and task = ?2
