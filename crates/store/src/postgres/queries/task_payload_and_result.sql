SELECT payload, NULL::bytea AS result FROM tidegate.tasks WHERE id = $1
UNION ALL
SELECT payload, result FROM tidegate.finished WHERE id = $1
