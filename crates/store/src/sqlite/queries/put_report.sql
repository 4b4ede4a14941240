update worker set report = ?2 where id = ?1
