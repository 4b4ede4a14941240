update slots set task = null where task = ?1 and limit_id = ?2
