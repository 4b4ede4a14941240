select coalesce(max(id), 0) from tasks
