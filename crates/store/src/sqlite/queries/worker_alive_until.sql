select alive_until from worker where id = ?1
