-- Ends the tasks in `ending`, with the results of those that were told: they go away or are kept among
-- those that ended, their keys are free, and their leases list them no more. Which these are says
-- `listed`.
, removed AS (
    DELETE FROM tidegate.tasks t
    WHERE t.id = ANY ((SELECT tasks FROM ending)::bigint[])
      AND t.kind = ANY (ARRAY (SELECT name FROM tidegate.kinds WHERE remove_on_completed_days = 0))
    RETURNING t.id, t.unique_key
), kept AS (
    DELETE FROM tidegate.tasks t
    WHERE t.id = ANY ((SELECT tasks FROM ending)::bigint[])
      AND (SELECT cardinality(tasks) FROM ending) > (SELECT count(*) FROM removed)
      AND t.kind <> ALL (ARRAY (SELECT name FROM tidegate.kinds WHERE remove_on_completed_days = 0))
    RETURNING t.*
), moved AS (
    INSERT INTO tidegate.ended (id, lane, kind, queue, group_name, job, workflow, unique_key, weight,
                                priority, max_attempts, timeout_ms, spent, deaths, arrival, created_at,
                                payload, error, state, result, finished_at, remove_day)
    SELECT id, lane, kind, queue, group_name, job, workflow, unique_key, weight, priority, max_attempts,
           timeout_ms, spent, deaths, arrival, created_at, payload, error, 4,
           (SELECT results[array_position(told, kept.id)] FROM ending), moment.now,
           -- The end of the last day on which it is kept.
           coalesce((SELECT (moment.now + 86400000 * k.remove_on_completed_days + 86399999) / 86400000
                     FROM tidegate.kinds k WHERE k.name = kept.kind), 2147483647)
    FROM kept CROSS JOIN moment
), freed AS (
    DELETE FROM tidegate.unique_keys WHERE key = ANY (ARRAY (
        SELECT unique_key FROM removed WHERE unique_key IS NOT NULL
        UNION ALL SELECT unique_key FROM kept WHERE unique_key IS NOT NULL))
), of_lease AS MATERIALIZED (
    SELECT token, bool_and(ends)
           -- Others may run under it that have rows.
           AND NOT EXISTS (SELECT FROM tidegate.running r WHERE r.token = listed.token) AS is_over
    FROM listed GROUP BY token HAVING bool_or(ends)
), over AS (
    DELETE FROM tidegate.leases WHERE token = ANY (ARRAY (SELECT token FROM of_lease WHERE is_over))
), shrunk AS (
    UPDATE tidegate.leases l
    SET (tasks, limits, numbers) = (
        -- Those with slots first.
        SELECT coalesce(array_agg(task) FILTER (WHERE limit_id IS NOT NULL), '{}')
               || coalesce(array_agg(task) FILTER (WHERE limit_id IS NULL), '{}'),
               coalesce(array_agg(limit_id) FILTER (WHERE limit_id IS NOT NULL), '{}'),
               coalesce(array_agg(number) FILTER (WHERE limit_id IS NOT NULL), '{}')
        FROM listed WHERE listed.token = l.token AND NOT ends)
    WHERE l.token = ANY (ARRAY (SELECT token FROM of_lease WHERE NOT is_over))
)
