SELECT nextval('tidegate.task_ids') AS id FROM generate_series(1, $1::bigint)
