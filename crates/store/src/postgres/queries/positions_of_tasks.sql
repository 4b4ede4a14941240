-- Where tasks stand, in one snapshot. It only decides what to lock. Position 5 is a lease that lists the
-- task, which has no row of its own then; a task without a position stands in no table.
SELECT t.id, NULL::int AS state,
       CASE WHEN s.task IS NOT NULL THEN 0 WHEN a.task IS NOT NULL THEN 1
            WHEN r.task IS NOT NULL THEN 2 WHEN u.task IS NOT NULL THEN 3
            WHEN l.task IS NOT NULL THEN 4 WHEN listed.is_listed THEN 5 END AS position,
       l.limit_id
FROM tidegate.tasks t
LEFT JOIN LATERAL (SELECT task FROM tidegate.scheduled WHERE task = t.id OFFSET 0) AS s ON true
LEFT JOIN LATERAL (SELECT task FROM tidegate.inbox WHERE task = t.id OFFSET 0) AS a ON true
LEFT JOIN LATERAL (SELECT task FROM tidegate.ready WHERE task = t.id OFFSET 0) AS r ON true
LEFT JOIN LATERAL (SELECT task FROM tidegate.running WHERE task = t.id OFFSET 0) AS u ON true
LEFT JOIN LATERAL (SELECT task, limit_id FROM tidegate.waiters WHERE task = t.id OFFSET 0) AS l ON true
CROSS JOIN LATERAL (
    SELECT s.task IS NULL AND a.task IS NULL AND r.task IS NULL AND u.task IS NULL AND l.task IS NULL
           AND EXISTS (SELECT FROM tidegate.leases WHERE tasks && ARRAY[t.id]) AS is_listed OFFSET 0
) AS listed
WHERE t.id = ANY ($1)
UNION ALL
SELECT id, state, NULL, NULL FROM tidegate.finished WHERE id = ANY ($1)
