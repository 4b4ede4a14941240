UPDATE tidegate.unique_keys k SET task = n.task
FROM unnest($1::text[], $2::bigint[]) AS n (key, task)
CROSS JOIN LATERAL (SELECT ctid FROM tidegate.unique_keys WHERE key = n.key OFFSET 0) AS row
WHERE k.ctid = row.ctid
