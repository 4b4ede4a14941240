UPDATE tidegate.tasks
SET state = NULL, result = NULL, error = NULL, finished_at = NULL, remove_at = NULL, spent = 0, deaths = 0,
    arrival = $2
WHERE id = ANY ($1)
