-- What the rules must know of unfinished tasks, and the limits that apply to them by name.
SELECT t.id, t.lane, t.kind, t.queue, t.group_name, t.job, t.workflow, t.unique_key, t.weight,
       t.priority, t.max_attempts, t.timeout_ms, t.attempts_used, t.crashes, t.due_at, t.created_at,
       t.on_failure, t.error, w.id AS workflow_limit, j.id AS job_limit, g.id AS group_limit
FROM tidegate.tasks t
LEFT JOIN LATERAL (
    SELECT id FROM tidegate.limits WHERE name = 'workflow:' || t.workflow OFFSET 0
) AS w ON true
LEFT JOIN LATERAL (
    SELECT id FROM tidegate.limits WHERE name = 'job:' || t.job OFFSET 0
) AS j ON true
LEFT JOIN LATERAL (
    SELECT id FROM tidegate.limits WHERE name = 'group:' || coalesce(t.group_name, t.kind) OFFSET 0
) AS g ON true
WHERE t.id = ANY ($1)
