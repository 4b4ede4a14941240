select payload, result from tasks where id = ?1
