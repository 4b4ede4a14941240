SELECT t.workflow AS name, s.state, count(*) AS tasks
FROM tidegate.tasks t JOIN tidegate.states s ON s.id = t.id
WHERE t.workflow IS NOT NULL
GROUP BY t.workflow, s.state
ORDER BY t.workflow COLLATE "C"
