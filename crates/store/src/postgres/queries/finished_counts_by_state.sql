SELECT state, count(*) AS tasks FROM tidegate.finished GROUP BY state
