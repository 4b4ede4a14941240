SELECT r.task, r.token, r.gated, r.cancel, r.started_at
FROM tidegate.running r JOIN tidegate.tasks t ON t.id = r.task
WHERE coalesce(t.group_name, t.kind) = ANY ($1)
ORDER BY r.task FOR UPDATE OF r
