UPDATE tidegate.tasks t SET spent = n.spent, deaths = n.deaths, error = n.error,
                            arrival = n.arrival
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[])
     AS n (task, spent, deaths, error, arrival)
CROSS JOIN LATERAL (SELECT ctid FROM tidegate.tasks WHERE id = n.task OFFSET 0) AS row
WHERE t.ctid = row.ctid
