SELECT state, count(*) AS tasks FROM tidegate.tasks WHERE state IS NOT NULL GROUP BY state
