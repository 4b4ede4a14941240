update running set cancel = 1 where token = ?1 and task = ?2
