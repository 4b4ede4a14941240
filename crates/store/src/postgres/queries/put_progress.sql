UPDATE tidegate.running r SET progress_percent = p.progress_percent, progress_message = p.progress_message
FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bytea[])
     AS p (task, token, progress_percent, progress_message)
CROSS JOIN LATERAL (
    SELECT ctid FROM tidegate.running WHERE task = p.task AND token = p.token OFFSET 0
) AS row
WHERE r.ctid = row.ctid
