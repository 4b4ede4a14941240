-- The state of an unfinished task is the place it stands in.
SELECT * FROM (
    SELECT t.id, t.kind, t.queue, t.group_name, t.job, t.workflow, t.unique_key, t.weight,
           t.priority, t.spent, t.deaths, t.created_at, t.finished_at, t.error, s.run_at,
           u.percent, u.message,
           coalesce(t.max_attempts, k.max_attempts, 1) AS max_attempts,
           CASE WHEN t.state IS NOT NULL THEN t.state
                WHEN s.task IS NOT NULL THEN 0
                WHEN l.task IS NOT NULL THEN 2
                WHEN u.task IS NOT NULL THEN 3
                ELSE 1 END AS state
    FROM tidegate.tasks t
    LEFT JOIN tidegate.kinds k ON k.name = t.kind
    LEFT JOIN tidegate.scheduled s ON s.task = t.id
    LEFT JOIN tidegate.line l ON l.task = t.id
    LEFT JOIN tidegate.running u ON u.task = t.id
    WHERE t.id > $1
      AND ($2::text IS NULL OR t.kind = $2)
      AND ($3::text IS NULL OR t.queue = $3)
      AND ($4::text IS NULL OR t.job = $4)
      AND ($5::text IS NULL OR t.workflow = $5)
) AS view
WHERE cardinality($6::int[]) = 0 OR state = ANY ($6)
ORDER BY id LIMIT $7
