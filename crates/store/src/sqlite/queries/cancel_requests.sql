select task from running where token = ?1 and cancel = 1 order by task
