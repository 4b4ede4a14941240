update tasks
set state = ?2, result = ?3, error = coalesce(?4, error), finished_at = ?5, remove_at = ?6
where id = ?1
