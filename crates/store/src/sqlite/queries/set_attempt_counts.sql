update task set spent = ?2, deaths = ?3, error = coalesce(?4, error) where id = ?1
