SELECT CASE WHEN t.state IS NOT NULL THEN t.state
            WHEN s.task IS NOT NULL THEN 0
            WHEN l.task IS NOT NULL THEN 2
            WHEN u.task IS NOT NULL THEN 3
            ELSE 1 END AS state,
       count(*) AS tasks
FROM tidegate.tasks t
LEFT JOIN tidegate.scheduled s ON s.task = t.id
LEFT JOIN tidegate.line l ON l.task = t.id
LEFT JOIN tidegate.running u ON u.task = t.id
GROUP BY 1
