SELECT id FROM tidegate.tasks WHERE id = ANY ($1)
UNION ALL
SELECT id FROM tidegate.ended WHERE id = ANY ($1)
