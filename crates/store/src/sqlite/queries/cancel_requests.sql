select task from running where token = ?1 and cancel_requested = 1
union select task from fenced_attempts where token = ?1
order by task
