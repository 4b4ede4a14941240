-- Hands out what was picked, under one new lease, whatever it is. All or nothing: where a limit began
-- after some of them were made ready, they are only locked, and `stale` names those.
--
-- What holds no slots is listed in the lease, and so is what holds one slot and can hand it on. No
-- limit's lock is needed: that a job's tasks left its window is noted in a row of its own. What was
-- handed on in the same transaction has a lease already, and the rest is added to it.
, special AS MATERIALIZED (
    -- Those whose row does not say enough.
    SELECT picked.task, picked.gated, j.window_full,
           CASE WHEN j.share_weight IS NOT NULL THEN j.id END AS job_limit,
           held.limits, held.numbers,
           cardinality(held.limits) = 1 AND t.job IS NULL AND t.workflow IS NULL AND t.weight = 1
               AS is_listed,
           -- Where no limit began since, none has to be looked at.
           picked.stamp < seen.limits_version AND EXISTS (
               SELECT FROM tidegate.limits l
               WHERE l.name IN ('group:' || coalesce(t.group_name, t.kind), 'job:' || t.job,
                                'workflow:' || t.workflow)
                 AND l.since > picked.stamp) AS is_stale
    FROM seen CROSS JOIN picked
    CROSS JOIN LATERAL (SELECT * FROM tidegate.tasks WHERE id = picked.task OFFSET 0) AS t
    LEFT JOIN LATERAL (
        SELECT id, share_weight, window_full FROM tidegate.limits
        WHERE t.job IS NOT NULL AND name = 'job:' || t.job OFFSET 0
    ) AS j ON true
    LEFT JOIN LATERAL (
        SELECT array_agg(s.limit_id) AS limits, array_agg(s.number) AS numbers
        FROM (SELECT limit_id, number
              FROM (SELECT * FROM tidegate.slots WHERE task = picked.task OFFSET 0) AS own
              ORDER BY limit_id, number) AS s
        WHERE picked.gated
    ) AS held ON true
    WHERE picked.gated OR picked.stamp < seen.limits_version
), summed AS MATERIALIZED (
    SELECT array_agg(task) AS tasks, array_agg(lane) AS lanes, array_agg(rank) AS ranks,
           array_agg(tag) AS tags, max(tag) AS tag,
           coalesce(array_agg(task) FILTER (WHERE NOT gated), '{}') AS free
    FROM picked
), sorted AS MATERIALIZED (
    -- Looked at once, so that what is not needed is not looked for.
    SELECT coalesce(array_agg(task) FILTER (WHERE is_listed), '{}') AS holding,
           coalesce(array_agg(limits[1]) FILTER (WHERE is_listed), '{}') AS limits,
           coalesce(array_agg(numbers[1]) FILTER (WHERE is_listed), '{}') AS numbers,
           array_agg(task) FILTER (WHERE is_stale) AS stale,
           coalesce(bool_or(gated), false) AS has_gated,
           coalesce(bool_or(job_limit IS NOT NULL), false) AS has_jobs
    FROM special
), made AS (
    INSERT INTO tidegate.leases (token, worker, expires_at, started_at, tasks, limits, numbers)
    SELECT nextval('tidegate.tokens'), $3, moment.now + $4, moment.now,
           sorted.holding || summed.free, sorted.limits, sorted.numbers
    FROM moment CROSS JOIN summed CROSS JOIN sorted
    WHERE summed.tasks IS NOT NULL AND sorted.stale IS NULL AND NOT EXISTS (SELECT FROM begun)
    RETURNING token, expires_at
), grown AS (
    UPDATE tidegate.leases l
    SET tasks = l.tasks || sorted.holding || summed.free, limits = l.limits || sorted.limits,
        numbers = l.numbers || sorted.numbers
    FROM summed CROSS JOIN sorted
    WHERE l.token = (SELECT token FROM begun) AND summed.tasks IS NOT NULL
      AND sorted.stale IS NULL
    RETURNING l.token, l.expires_at
), lease AS (
    SELECT token, expires_at FROM made UNION ALL SELECT token, expires_at FROM grown
), gone AS (
    DELETE FROM tidegate.ready WHERE ctid = ANY (ARRAY (
        SELECT row FROM picked WHERE EXISTS (SELECT FROM lease)))
), started AS (
    INSERT INTO tidegate.running (task, token, gated, started_at)
    SELECT special.task, lease.token, true, moment.now
    FROM special CROSS JOIN lease CROSS JOIN moment
    WHERE special.gated AND special.is_listed IS NOT TRUE AND (SELECT has_gated FROM sorted)
), unwritten AS (
    DELETE FROM tidegate.slots WHERE task = ANY (ARRAY (
        SELECT unnest(sorted.holding) FROM sorted CROSS JOIN lease))
), passed AS (
    INSERT INTO tidegate.passes (limit_id, tasks, urgent)
    SELECT job_limit, count(*), bool_or(window_full) FROM special CROSS JOIN lease
    WHERE job_limit IS NOT NULL AND (SELECT has_jobs FROM sorted) GROUP BY job_limit
), clock AS (
    -- Where a job's task goes ahead of the clock. Nobody waits for the clock: whoever meets
    -- another who sets it leaves it to them, and it is behind by one claim.
    UPDATE tidegate.counters SET virtual_time = (SELECT tag FROM summed)
    WHERE ctid = ANY (ARRAY (
        SELECT c.ctid FROM tidegate.counters c
        WHERE c.virtual_time < (SELECT tag FROM summed CROSS JOIN lease)
          AND (SELECT seen.virtual_time < summed.tag FROM seen CROSS JOIN summed)
        FOR UPDATE SKIP LOCKED))
), slot AS MATERIALIZED (
    SELECT array_agg(special.task) AS holders, array_agg(one.limit_id) AS limits,
           array_agg(one.number) AS numbers, array_agg(l.name) AS names
    FROM special
    CROSS JOIN LATERAL unnest(special.limits, special.numbers) AS one (limit_id, number)
    CROSS JOIN LATERAL (SELECT name FROM tidegate.limits WHERE id = one.limit_id OFFSET 0) AS l
    WHERE (SELECT has_gated FROM sorted)
)
-- Lists side by side: the tasks in their order; and who holds which slot.
SELECT seen.*, lease.token, lease.expires_at, summed.tasks, summed.lanes, summed.ranks, summed.tags,
       sorted.stale, slot.holders, slot.limits, slot.numbers, slot.names,
       ARRAY (SELECT DISTINCT job_limit FROM special WHERE job_limit IS NOT NULL) AS windows,
       EXISTS (SELECT FROM special) AS has_special,
       EXISTS (SELECT FROM cut)
           AND coalesce(cardinality(summed.tasks), 0) < (SELECT tasks FROM wanted) AS is_cut,
       (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint AS took_us,
       CASE WHEN lease.token IS NOT NULL THEN set_config('tidegate.lease', lease.token::text, true) END
FROM seen CROSS JOIN summed CROSS JOIN sorted CROSS JOIN slot LEFT JOIN lease ON true
