UPDATE tidegate.tasks t
SET spent = n.spent, deaths = n.deaths, error = n.error, state = n.state, result = n.result,
    finished_at = $8, remove_at = n.remove_at
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::int[], $6::bytea[],
            $7::bigint[]) AS n (task, spent, deaths, error, state, result, remove_at)
CROSS JOIN LATERAL (SELECT ctid FROM tidegate.tasks WHERE id = n.task OFFSET 0) AS row
WHERE t.ctid = row.ctid
