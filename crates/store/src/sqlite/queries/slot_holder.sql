select task from slots where limit_id = ?1 and number = ?2 and task is not null
