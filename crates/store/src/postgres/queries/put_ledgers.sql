UPDATE tidegate.tasks t SET spent = n.spent, deaths = n.deaths, error = n.error,
                            arrival = n.arrival
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[])
     AS n (task, spent, deaths, error, arrival)
WHERE t.id = n.task
