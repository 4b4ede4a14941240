SELECT substr(limits.name, 5) AS name, limits.capacity, limits.share_weight, limits.min_concurrency,
       limits.priority, limits.delay_ms, limits.paused_by IS NOT NULL AS paused, of_job.state, of_job.tasks
FROM tidegate.limits limits
LEFT JOIN LATERAL (
    SELECT state, count(*) AS tasks FROM tidegate.task_states
    WHERE job = substr(limits.name, 5)
    GROUP BY state
) AS of_job ON true
WHERE limits.name LIKE 'job:%'
ORDER BY name
