SELECT setval('tidegate.task_ids', $1::bigint)
