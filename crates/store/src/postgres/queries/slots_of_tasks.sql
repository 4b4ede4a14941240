SELECT s.task, s.limit_id, s.number, l.name
FROM tidegate.held_slots s
CROSS JOIN LATERAL (SELECT name FROM tidegate.limits WHERE id = s.limit_id OFFSET 0) AS l
WHERE s.task = ANY ($1)
