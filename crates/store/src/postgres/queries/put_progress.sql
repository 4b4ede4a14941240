UPDATE tidegate.running r SET percent = p.percent, message = p.message
FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bytea[])
     AS p (task, token, percent, message)
WHERE r.task = p.task AND r.token = p.token
