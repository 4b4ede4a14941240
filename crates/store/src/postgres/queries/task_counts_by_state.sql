SELECT state, count(*) AS tasks FROM tidegate.states GROUP BY state
