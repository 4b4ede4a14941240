update slots set task = null where limit_id = ?1 and number = ?2
