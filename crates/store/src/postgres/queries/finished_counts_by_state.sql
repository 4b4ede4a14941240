SELECT state, count(*) AS tasks FROM tidegate.ended GROUP BY state
