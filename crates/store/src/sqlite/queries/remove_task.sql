delete from task where id = ?1
