UPDATE tidegate.tasks t SET spent = n.spent, deaths = n.deaths, error = n.error
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[])
     AS n (task, spent, deaths, error)
WHERE t.id = n.task
