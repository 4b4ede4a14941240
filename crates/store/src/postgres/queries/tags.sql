-- What the rules must know of unfinished tasks, and the limits that apply to them by name.
SELECT t.id, t.lane, t.kind, t.queue, t.group_name, t.job, t.workflow, t.unique_key, t.weight,
       t.priority, t.max_attempts, t.timeout_ms, t.spent, t.deaths, t.arrival, t.created_at,
       t.error, w.id AS workflow_limit, j.id AS job_limit, g.id AS group_limit
FROM tidegate.tasks t
LEFT JOIN tidegate.limits w ON w.name = 'workflow:' || t.workflow
LEFT JOIN tidegate.limits j ON j.name = 'job:' || t.job
LEFT JOIN tidegate.limits g ON g.name = 'group:' || coalesce(t.group_name, t.kind)
WHERE t.id = ANY ($1) AND t.state IS NULL
