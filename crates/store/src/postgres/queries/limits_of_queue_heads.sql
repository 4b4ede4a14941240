-- A look without a lock at the first of some lines: which limits would admitting them touch?
-- It only decides what to lock. What was seen is read again under the lock. The lines are those of the
-- limits $1 and of the limits that apply to the tasks $2.
WITH of_limit AS MATERIALIZED (
    SELECT unnest($1::bigint[]) AS id
    UNION
    SELECT l.id
    FROM unnest($2::bigint[]) AS own (task)
    CROSS JOIN LATERAL (
        SELECT workflow, job, group_name, kind FROM tidegate.tasks WHERE id = own.task OFFSET 0
    ) AS t
    CROSS JOIN LATERAL unnest(ARRAY['workflow:' || t.workflow, 'job:' || t.job,
                                    'group:' || coalesce(t.group_name, t.kind)]) AS need (name)
    CROSS JOIN LATERAL (SELECT id FROM tidegate.limits WHERE name = need.name OFFSET 0) AS l
)
SELECT DISTINCT l.id
FROM of_limit
CROSS JOIN LATERAL (
    (SELECT task FROM tidegate.waiters WHERE limit_id = of_limit.id AND wait_reason <= 1
     ORDER BY wait_reason, rank, tag, admission_seq LIMIT 16)
    UNION ALL
    (SELECT task FROM tidegate.waiters WHERE limit_id = of_limit.id AND wait_reason = 2
     ORDER BY rank, tag, admission_seq LIMIT 4)
    UNION ALL
    (SELECT task FROM tidegate.waiters WHERE limit_id = of_limit.id AND wait_reason = 3
     ORDER BY rank, tag, admission_seq LIMIT 4)
    UNION ALL
    -- Of a job with a reserve: those past its line, who may be the next to get it.
    (SELECT admitted.id FROM tidegate.limits j
     CROSS JOIN LATERAL (
         SELECT t.id FROM tidegate.slots s
         CROSS JOIN LATERAL (SELECT task AS id FROM tidegate.ready WHERE task = s.task OFFSET 0) AS t
         WHERE s.limit_id = j.id LIMIT 16
     ) AS admitted
     WHERE j.id = of_limit.id AND j.min_concurrency > 0 AND j.in_window > 0)
) AS head
CROSS JOIN LATERAL (
    SELECT workflow, job, group_name, kind FROM tidegate.tasks WHERE id = head.task OFFSET 0
) AS t
CROSS JOIN LATERAL unnest(ARRAY['workflow:' || t.workflow, 'job:' || t.job,
                                'group:' || coalesce(t.group_name, t.kind)]) AS need (name)
CROSS JOIN LATERAL (SELECT id FROM tidegate.limits WHERE name = need.name OFFSET 0) AS l
