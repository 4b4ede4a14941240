-- A look without a lock at the first of some lines: which limits would admitting them touch?
-- It only decides what to lock. What was seen is read again under the lock.
SELECT DISTINCT l.id
FROM unnest($1::bigint[]) AS of_limit (id)
CROSS JOIN LATERAL (
    (SELECT task FROM tidegate.line WHERE limit_id = of_limit.id AND class <= 1
     ORDER BY class, rank, tag, place LIMIT 16)
    UNION ALL
    (SELECT task FROM tidegate.line WHERE limit_id = of_limit.id AND class = 2
     ORDER BY rank, tag, place LIMIT 4)
    UNION ALL
    (SELECT task FROM tidegate.line WHERE limit_id = of_limit.id AND class = 3
     ORDER BY rank, tag, place LIMIT 4)
) AS head
CROSS JOIN LATERAL (
    SELECT workflow, job, group_name, kind FROM tidegate.tasks WHERE id = head.task OFFSET 0
) AS t
CROSS JOIN LATERAL unnest(ARRAY['workflow:' || t.workflow, 'job:' || t.job,
                                'group:' || coalesce(t.group_name, t.kind)]) AS need (name)
CROSS JOIN LATERAL (SELECT id FROM tidegate.limits WHERE name = need.name OFFSET 0) AS l
