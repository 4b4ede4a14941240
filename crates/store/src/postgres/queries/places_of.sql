-- Where tasks stand, in one snapshot. It only decides what to lock.
SELECT t.id, NULL::int AS state,
       CASE WHEN s.task IS NOT NULL THEN 0 WHEN a.task IS NOT NULL THEN 1
            WHEN r.task IS NOT NULL THEN 2 WHEN u.task IS NOT NULL THEN 3
            WHEN l.task IS NOT NULL THEN 4 END AS place,
       l.limit_id
FROM tidegate.tasks t
LEFT JOIN LATERAL (SELECT task FROM tidegate.scheduled WHERE task = t.id OFFSET 0) AS s ON true
LEFT JOIN LATERAL (SELECT task FROM tidegate.arrived WHERE task = t.id OFFSET 0) AS a ON true
LEFT JOIN LATERAL (SELECT task FROM tidegate.ready WHERE task = t.id OFFSET 0) AS r ON true
LEFT JOIN LATERAL (SELECT task FROM tidegate.running WHERE task = t.id OFFSET 0) AS u ON true
LEFT JOIN LATERAL (SELECT task, limit_id FROM tidegate.line WHERE task = t.id OFFSET 0) AS l ON true
WHERE t.id = ANY ($1)
UNION ALL
SELECT id, state, NULL, NULL FROM tidegate.ended WHERE id = ANY ($1)
