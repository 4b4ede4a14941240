SELECT id, kind, group_name, job, workflow, weight, spent, deaths, unique_key
FROM tidegate.tasks ORDER BY id
