-- Workflows with tasks that are kept, and those that go no further.
SELECT name, state, count(*) FILTER (WHERE state IS NOT NULL) AS tasks, max(paused_by) AS paused_by
FROM (
    SELECT of_state.workflow AS name, of_state.state, l.paused_by
    FROM tidegate.task_states of_state
    LEFT JOIN tidegate.limits l ON l.name = 'workflow:' || of_state.workflow
    WHERE of_state.workflow IS NOT NULL
    UNION ALL
    SELECT substr(name, 10), NULL, paused_by FROM tidegate.limits
    WHERE paused_by IS NOT NULL AND starts_with(name, 'workflow:')
) AS found
GROUP BY name, state
ORDER BY name COLLATE "C"
