SELECT l.task, t.kind, t.queue, l.class, t.weight, l.since
FROM tidegate.line l JOIN tidegate.tasks t ON t.id = l.task
WHERE l.limit_id = $1
ORDER BY l.class, l.rank, l.tag, l.place LIMIT $2
