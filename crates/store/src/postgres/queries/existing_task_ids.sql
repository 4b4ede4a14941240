SELECT id FROM tidegate.tasks WHERE id = ANY ($1)
UNION ALL
SELECT id FROM tidegate.finished WHERE id = ANY ($1)
