delete from slots where limit_id = ?1
