SELECT id FROM tidegate.tasks WHERE id = ANY ($1)
