INSERT INTO tidegate.inbox (task, job)
SELECT id, CASE WHEN workflow IS NULL THEN job END FROM tidegate.tasks WHERE id = ANY ($1)
ON CONFLICT DO NOTHING
