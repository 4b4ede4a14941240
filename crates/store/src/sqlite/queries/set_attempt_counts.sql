update tasks set attempts_used = ?2, crashes = ?3, error = coalesce(?4, error) where id = ?1
