SELECT s.task, s.limit_id, s.number, l.name
FROM tidegate.slots s JOIN tidegate.limits l ON l.id = s.limit_id
WHERE s.task = ANY ($1)
