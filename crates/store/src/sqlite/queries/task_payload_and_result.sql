select payload, result from task where id = ?1
