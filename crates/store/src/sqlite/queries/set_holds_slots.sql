update running set gated = 1 where token = ?1 and task = ?2
