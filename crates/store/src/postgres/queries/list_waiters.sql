SELECT l.task, t.kind, t.queue, l.wait_reason, t.weight, l.due_at
FROM tidegate.waiters l JOIN tidegate.tasks t ON t.id = l.task
WHERE l.limit_id = $1
ORDER BY l.wait_reason, l.rank, l.tag, l.admission_seq LIMIT $2
