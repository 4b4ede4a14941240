select task from running where token = ?1 and cancel = 1
union select task from fenced where token = ?1
order by task
