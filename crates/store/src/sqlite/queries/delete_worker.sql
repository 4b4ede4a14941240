delete from worker where id = ?1
