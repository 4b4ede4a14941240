SELECT id, payload FROM tidegate.tasks WHERE id = ANY ($1)
