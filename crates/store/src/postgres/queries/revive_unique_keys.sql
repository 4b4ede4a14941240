-- The keys of tasks that come back, where they are free. Ordered as a submit takes them.
INSERT INTO tidegate.unique_keys (key, task)
SELECT key, task FROM unnest($1::text[], $2::bigint[]) AS r (key, task)
ORDER BY key COLLATE "C", task
ON CONFLICT (key) DO NOTHING
RETURNING task
