SELECT r.task, r.token, r.holds_slots, r.cancel_requested, r.started_at
FROM tidegate.running r
WHERE (SELECT coalesce(group_name, kind) FROM tidegate.tasks WHERE id = r.task) = ANY ($1)
ORDER BY r.task FOR UPDATE OF r
