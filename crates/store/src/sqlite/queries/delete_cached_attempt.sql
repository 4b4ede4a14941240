delete from running where token = ?1 and task = ?2
