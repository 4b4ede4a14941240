-- The state of an unfinished task is the place it stands in, so each place is a list of its own:
-- whoever asks for a state that few are in does not read past all the others.
WITH found AS (
    (SELECT p.task AS id, 0 AS state
     FROM tidegate.scheduled p JOIN tidegate.tasks t ON t.id = p.task
     WHERE p.task > $1 AND (cardinality($6::int[]) = 0 OR 0 = ANY ($6))
       AND ($2::text IS NULL OR t.kind = $2) AND ($3::text IS NULL OR t.queue = $3)
       AND ($4::text IS NULL OR t.job = $4) AND ($5::text IS NULL OR t.workflow = $5)
     ORDER BY p.task LIMIT $7)
    UNION ALL
    (SELECT p.task AS id, 1 AS state
     FROM tidegate.arrived p JOIN tidegate.tasks t ON t.id = p.task
     WHERE p.task > $1 AND (cardinality($6::int[]) = 0 OR 1 = ANY ($6))
       AND ($2::text IS NULL OR t.kind = $2) AND ($3::text IS NULL OR t.queue = $3)
       AND ($4::text IS NULL OR t.job = $4) AND ($5::text IS NULL OR t.workflow = $5)
     ORDER BY p.task LIMIT $7)
    UNION ALL
    (SELECT p.task AS id, 1 AS state
     FROM tidegate.ready p JOIN tidegate.tasks t ON t.id = p.task
     WHERE p.task > $1 AND (cardinality($6::int[]) = 0 OR 1 = ANY ($6))
       AND ($2::text IS NULL OR t.kind = $2) AND ($3::text IS NULL OR t.queue = $3)
       AND ($4::text IS NULL OR t.job = $4) AND ($5::text IS NULL OR t.workflow = $5)
     ORDER BY p.task LIMIT $7)
    UNION ALL
    (SELECT p.task AS id, 2 AS state
     FROM tidegate.line p JOIN tidegate.tasks t ON t.id = p.task
     WHERE p.task > $1 AND (cardinality($6::int[]) = 0 OR 2 = ANY ($6))
       AND ($2::text IS NULL OR t.kind = $2) AND ($3::text IS NULL OR t.queue = $3)
       AND ($4::text IS NULL OR t.job = $4) AND ($5::text IS NULL OR t.workflow = $5)
     ORDER BY p.task LIMIT $7)
    UNION ALL
    (SELECT p.task AS id, 3 AS state
     FROM tidegate.running p JOIN tidegate.tasks t ON t.id = p.task
     WHERE p.task > $1 AND (cardinality($6::int[]) = 0 OR 3 = ANY ($6))
       AND ($2::text IS NULL OR t.kind = $2) AND ($3::text IS NULL OR t.queue = $3)
       AND ($4::text IS NULL OR t.job = $4) AND ($5::text IS NULL OR t.workflow = $5)
     ORDER BY p.task LIMIT $7)
    UNION ALL
    (SELECT t.id, t.state FROM tidegate.tasks t
     WHERE t.id > $1 AND t.state IS NOT NULL AND (cardinality($6::int[]) = 0 OR t.state = ANY ($6))
       AND ($2::text IS NULL OR t.kind = $2) AND ($3::text IS NULL OR t.queue = $3)
       AND ($4::text IS NULL OR t.job = $4) AND ($5::text IS NULL OR t.workflow = $5)
     ORDER BY t.id LIMIT $7)
)
SELECT t.id, t.kind, t.queue, t.group_name, t.job, t.workflow, t.unique_key, t.weight,
       t.priority, t.spent, t.deaths, t.created_at, t.finished_at, t.error, s.run_at,
       u.percent, u.message, found.state,
       coalesce(t.max_attempts, k.max_attempts, 1) AS max_attempts
FROM (SELECT * FROM found ORDER BY id LIMIT $7) AS found
JOIN tidegate.tasks t ON t.id = found.id
LEFT JOIN tidegate.kinds k ON k.name = t.kind
LEFT JOIN tidegate.scheduled s ON s.task = t.id
LEFT JOIN tidegate.running u ON u.task = t.id
ORDER BY t.id
