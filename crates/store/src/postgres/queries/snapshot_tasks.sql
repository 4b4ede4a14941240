SELECT id, kind, group_name, job, workflow, weight, attempts_used, crashes, unique_key
FROM tidegate.tasks ORDER BY id
