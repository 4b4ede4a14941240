INSERT INTO tidegate.unique_keys (key, task) SELECT * FROM unnest($1::text[], $2::bigint[])
ON CONFLICT (key) DO UPDATE SET task = excluded.task
