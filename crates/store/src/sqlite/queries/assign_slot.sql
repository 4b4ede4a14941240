update slots set task = ?3 where limit_id = ?1 and number = ?2
