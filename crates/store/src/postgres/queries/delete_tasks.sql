DELETE FROM tidegate.tasks WHERE id = ANY ($1)
