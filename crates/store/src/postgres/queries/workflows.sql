SELECT workflow AS name, state, count(*) AS tasks
FROM tidegate.states
WHERE workflow IS NOT NULL
GROUP BY workflow, state
ORDER BY workflow COLLATE "C"
