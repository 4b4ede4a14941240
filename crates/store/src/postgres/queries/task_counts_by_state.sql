SELECT state, count(*) AS tasks FROM tidegate.task_states GROUP BY state
