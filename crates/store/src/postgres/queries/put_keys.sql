UPDATE tidegate.unique_keys k SET task = n.task
FROM unnest($1::text[], $2::bigint[]) AS n (key, task) WHERE k.key = n.key
