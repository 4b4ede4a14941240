-- Ends the tasks in `ending`: they go away or are kept among those that ended, their keys are free, and
-- their leases list them no more.
, removed AS (
    DELETE FROM tidegate.tasks t
    WHERE t.id = ANY (ARRAY (SELECT task FROM ending))
      AND t.kind = ANY (ARRAY (SELECT name FROM tidegate.kinds WHERE remove_on_completed_days = 0))
    RETURNING t.id, t.unique_key
), kept AS (
    DELETE FROM tidegate.tasks t
    WHERE t.id = ANY (ARRAY (SELECT task FROM ending))
      AND (SELECT count(*) FROM ending) > (SELECT count(*) FROM removed)
      AND t.kind <> ALL (ARRAY (SELECT name FROM tidegate.kinds WHERE remove_on_completed_days = 0))
    RETURNING t.*
), moved AS (
    INSERT INTO tidegate.ended (id, lane, kind, queue, group_name, job, workflow, unique_key, weight,
                                priority, max_attempts, timeout_ms, spent, deaths, arrival, created_at,
                                payload, error, state, result, finished_at, remove_day)
    SELECT id, lane, kind, queue, group_name, job, workflow, unique_key, weight, priority, max_attempts,
           timeout_ms, spent, deaths, arrival, created_at, payload, error, 4,
           (SELECT result FROM ending WHERE ending.task = kept.id), moment.now,
           -- The end of the last day on which it is kept.
           coalesce((SELECT (moment.now + 86400000 * k.remove_on_completed_days + 86399999) / 86400000
                     FROM tidegate.kinds k WHERE k.name = kept.kind), 2147483647)
    FROM kept CROSS JOIN moment
), freed AS (
    DELETE FROM tidegate.unique_keys WHERE key = ANY (ARRAY (
        SELECT unique_key FROM removed WHERE unique_key IS NOT NULL
        UNION ALL SELECT unique_key FROM kept WHERE unique_key IS NOT NULL))
), left_over AS MATERIALIZED (
    SELECT l.token, listed.task, listed.limit_id, listed.number,
           (listed.task, l.token) NOT IN (SELECT task, token FROM ending) AS stays
    FROM tidegate.leases l
    CROSS JOIN LATERAL unnest(l.tasks, l.limits, l.numbers) AS listed (task, limit_id, number)
    WHERE l.token = ANY (ARRAY (SELECT token FROM ending))
), rest AS MATERIALIZED (
    -- Those with slots first.
    SELECT token, bool_or(stays) AS has_tasks,
           coalesce(array_agg(task) FILTER (WHERE stays AND limit_id IS NOT NULL), '{}')
           || coalesce(array_agg(task) FILTER (WHERE stays AND limit_id IS NULL), '{}') AS tasks,
           coalesce(array_agg(limit_id) FILTER (WHERE stays AND limit_id IS NOT NULL), '{}')
               AS limits,
           coalesce(array_agg(number) FILTER (WHERE stays AND limit_id IS NOT NULL), '{}')
               AS numbers,
           -- Others may run under it that have rows.
           (SELECT true FROM tidegate.running r WHERE r.token = left_over.token LIMIT 1) AS has_rows
    FROM left_over GROUP BY token
), ended AS (
    DELETE FROM tidegate.leases WHERE token = ANY (ARRAY (
        SELECT token FROM rest WHERE NOT has_tasks AND has_rows IS NULL))
), shrunk AS (
    UPDATE tidegate.leases l
    SET (tasks, limits, numbers) = (
        SELECT tasks, limits, numbers FROM rest WHERE rest.token = l.token)
    WHERE l.token = ANY (ARRAY (SELECT token FROM rest WHERE has_tasks OR has_rows))
)
