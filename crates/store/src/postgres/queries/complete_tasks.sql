-- Ends the tasks in `ending`, with the results of those that were told: they go away or are kept among
-- those that ended, their keys are free, and their leases list them no more. What these list, and what
-- of it ends, says `listed`.
, gone AS (
    DELETE FROM tidegate.tasks t WHERE t.id = ANY ((SELECT tasks FROM ending)::bigint[])
    RETURNING t.*
), moved AS (
    INSERT INTO tidegate.finished (id, lane, kind, queue, group_name, job, workflow, unique_key, weight,
                                   priority, max_attempts, timeout_ms, attempts_used, crashes, due_at,
                                   created_at, payload, on_failure, trace, error, state, result,
                                   finished_at, remove_day)
    SELECT id, lane, kind, queue, group_name, job, workflow, unique_key, weight, priority, max_attempts,
           timeout_ms, attempts_used, crashes, due_at, created_at, payload, on_failure, trace, error, 4,
           ending.results[array_position(ending.told, gone.id)], ending.now,
           -- The end of the last day on which it is kept.
           coalesce((SELECT (ending.now + 86400000 * k.remove_on_completed_days + 86399999) / 86400000
                     FROM tidegate.kinds k WHERE k.name = gone.kind), 2147483647)
    FROM gone CROSS JOIN ending
    WHERE gone.kind NOT IN (SELECT name FROM tidegate.kinds WHERE remove_on_completed_days = 0)
), freed AS (
    DELETE FROM tidegate.unique_keys WHERE key = ANY (ARRAY (
        SELECT unique_key FROM gone WHERE unique_key IS NOT NULL))
), over AS (
    DELETE FROM tidegate.leases l
    WHERE l.token = ANY ((SELECT leases FROM ending)::bigint[])
      AND l.token NOT IN (SELECT token FROM listed WHERE NOT ends)
      -- Others may run under it that have rows. A LIMIT, so that it does not become a join.
      AND (SELECT r.token FROM tidegate.running r WHERE r.token = l.token LIMIT 1) IS NULL
), shrunk AS (
    UPDATE tidegate.leases l
    SET (tasks, limits, numbers) = (
        -- Those with slots first.
        SELECT coalesce(array_agg(task) FILTER (WHERE limit_id IS NOT NULL), '{}')
               || coalesce(array_agg(task) FILTER (WHERE limit_id IS NULL), '{}'),
               coalesce(array_agg(limit_id) FILTER (WHERE limit_id IS NOT NULL), '{}'),
               coalesce(array_agg(number) FILTER (WHERE limit_id IS NOT NULL), '{}')
        FROM listed WHERE listed.token = l.token AND NOT ends)
    WHERE l.token = ANY ((SELECT leases FROM ending)::bigint[])
      AND l.token IN (SELECT token FROM listed WHERE ends)
      AND (l.token IN (SELECT token FROM listed WHERE NOT ends)
           OR (SELECT r.token FROM tidegate.running r WHERE r.token = l.token LIMIT 1) IS NOT NULL)
)
