WITH due AS (DELETE FROM tidegate.scheduled WHERE task = ANY ($1))
UPDATE tidegate.tasks SET due_at = $2 WHERE id = ANY ($1)
