delete from running where token = ?1
