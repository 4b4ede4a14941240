-- Where tasks stand, in one snapshot. It only decides what to lock.
SELECT t.id, t.state,
       CASE WHEN s.task IS NOT NULL THEN 0 WHEN a.task IS NOT NULL THEN 1
            WHEN r.task IS NOT NULL THEN 2 WHEN u.task IS NOT NULL THEN 3
            WHEN l.task IS NOT NULL THEN 4 END AS place,
       l.limit_id
FROM tidegate.tasks t
LEFT JOIN tidegate.scheduled s ON s.task = t.id
LEFT JOIN tidegate.arrived a ON a.task = t.id
LEFT JOIN tidegate.ready r ON r.task = t.id
LEFT JOIN tidegate.running u ON u.task = t.id
LEFT JOIN tidegate.line l ON l.task = t.id
WHERE t.id = ANY ($1)
