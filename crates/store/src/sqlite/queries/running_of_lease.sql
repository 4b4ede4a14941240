select task from running where token = ?1 order by task
