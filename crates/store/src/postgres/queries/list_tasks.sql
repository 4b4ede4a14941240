-- The state of an unfinished task is the place it stands in, so each place is a list of its own:
-- whoever asks for a state that few are in does not read past all the others. Finished
-- tasks begin after $8, which is past the end where they are not asked for. OFFSET 0 keeps the
-- planner from turning a join around.
WITH found AS (
    (SELECT place.task AS id, place.state
    FROM (
        SELECT task, 0 AS state FROM tidegate.scheduled
        UNION ALL SELECT task, 1 FROM tidegate.inbox
        UNION ALL SELECT task, 1 FROM tidegate.ready
        UNION ALL SELECT task, 2 FROM tidegate.waiters
        UNION ALL SELECT task, 3 FROM tidegate.running_attempts
    ) AS place
    CROSS JOIN LATERAL (
        SELECT FROM tidegate.tasks t
        WHERE t.id = place.task
          AND ($2::text IS NULL OR t.kind = $2) AND ($3::text IS NULL OR t.queue = $3)
          AND ($4::text IS NULL OR t.job = $4) AND ($5::text IS NULL OR t.workflow = $5)
          AND ($9::text IS NULL OR coalesce(t.group_name, t.kind) = $9)
        OFFSET 0
    ) AS is_asked_for
    WHERE place.task > $1 AND (cardinality($6::int[]) = 0 OR place.state = ANY ($6))
    ORDER BY place.task LIMIT {page})
    UNION ALL
    (SELECT t.id, t.state FROM tidegate.finished t
    WHERE t.id > $8
      AND (cardinality($6::int[]) = 0 OR t.state = ANY ($6))
      AND ($2::text IS NULL OR t.kind = $2) AND ($3::text IS NULL OR t.queue = $3)
      AND ($4::text IS NULL OR t.job = $4) AND ($5::text IS NULL OR t.workflow = $5)
      AND ($9::text IS NULL OR coalesce(t.group_name, t.kind) = $9)
    ORDER BY t.id LIMIT {page})
)
SELECT t.id, t.kind, t.queue, t.group_name, t.job, t.workflow, t.unique_key, t.weight,
       t.priority, t.attempts_used, t.crashes, t.created_at, t.finished_at, t.error, s.run_at,
       u.progress_percent, u.progress_message, found.state,
       coalesce(t.max_attempts, k.max_attempts, 1) AS max_attempts
FROM (SELECT * FROM found ORDER BY id LIMIT $7) AS found
CROSS JOIN LATERAL (
    SELECT id, kind, queue, group_name, job, workflow, unique_key, weight, priority, attempts_used, crashes,
           created_at, NULL::bigint AS finished_at, error, max_attempts
    FROM tidegate.tasks WHERE id = found.id
    UNION ALL
    SELECT id, kind, queue, group_name, job, workflow, unique_key, weight, priority, attempts_used, crashes,
           created_at, finished_at, error, max_attempts
    FROM tidegate.finished WHERE id = found.id
) AS t
LEFT JOIN tidegate.kinds k ON k.name = t.kind
LEFT JOIN tidegate.scheduled s ON s.task = t.id
LEFT JOIN tidegate.running u ON u.task = t.id
ORDER BY t.id
