INSERT INTO tidegate.fenced_attempts (token, task) SELECT * FROM unnest($1::bigint[], $2::bigint[])
ON CONFLICT DO NOTHING
