update task set arrival = ?2 where id = ?1
