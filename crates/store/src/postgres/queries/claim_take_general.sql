-- Hands out what was picked, under one new lease, whatever it is. Where a limit began to apply to some
-- of them after they were made ready, these stay where they are, and `stale` names them; the rest is handed
-- out only to who says so.
--
-- What holds no slots is listed in the lease, and so is what holds one slot and can hand it on. No
-- limit's lock is needed: that a job's tasks left its window is noted in a row of its own. What was
-- handed on in the same transaction has a lease already, and the rest is added to it.
, aged AS MATERIALIZED (
    -- Where no limit began since, none has to be looked at.
    SELECT count(*) > 0 AS is_any,
           coalesce(array_agg(picked.task) FILTER (WHERE young.is_there), '{}') AS stale,
           array_agg(DISTINCT picked.lane) FILTER (WHERE young.is_there) AS lanes
    FROM seen JOIN picked ON picked.limits_version < seen.limits_version
    CROSS JOIN LATERAL (SELECT * FROM tidegate.tasks WHERE id = picked.task OFFSET 0) AS t
    CROSS JOIN LATERAL (
        SELECT EXISTS (
            SELECT FROM tidegate.limits l
            WHERE l.name IN ('group:' || coalesce(t.group_name, t.kind), 'job:' || t.job,
                             'workflow:' || t.workflow)
              AND l.applies_from_version > picked.limits_version) AS is_there
    ) AS young
), special AS MATERIALIZED (
    -- Those whose row does not say enough.
    SELECT picked.task, j.window_full,
           CASE WHEN j.share_weight IS NOT NULL THEN j.id END AS job_limit,
           held.limits, held.numbers,
           cardinality(held.limits) = 1 AND t.job IS NULL AND t.workflow IS NULL AND t.weight = 1
               AS is_listed
    FROM picked CROSS JOIN aged
    CROSS JOIN LATERAL (SELECT * FROM tidegate.tasks WHERE id = picked.task OFFSET 0) AS t
    LEFT JOIN LATERAL (
        SELECT id, share_weight, window_full FROM tidegate.limits
        WHERE t.job IS NOT NULL AND name = 'job:' || t.job OFFSET 0
    ) AS j ON true
    CROSS JOIN LATERAL (
        SELECT array_agg(s.limit_id ORDER BY s.limit_id, s.number) AS limits,
               array_agg(s.number ORDER BY s.limit_id, s.number) AS numbers
        FROM (SELECT * FROM tidegate.slots WHERE task = picked.task OFFSET 0) AS s
    ) AS held
    WHERE picked.holds_slots AND picked.task <> ALL (aged.stale)
), summed AS MATERIALIZED (
    SELECT array_agg(task) AS tasks, array_agg(lane) AS lanes, array_agg(rank) AS ranks,
           array_agg(tag) AS tags, array_agg(ready_at) AS ready_at, array_agg(row) AS rows,
           max(tag) AS tag,
           coalesce(array_agg(task) FILTER (WHERE NOT holds_slots), '{}') AS free,
           coalesce(bool_or(holds_slots), false) AS has_slot_holders
    FROM lane CROSS JOIN aged CROSS JOIN picked
    WHERE picked.task <> ALL (aged.stale) AND (lane.takes_rest OR aged.lanes IS NULL)
), sorted AS MATERIALIZED (
    -- Looked at once, so that what is not needed is not looked for.
    SELECT coalesce(array_agg(task) FILTER (WHERE is_listed), '{}') AS holding,
           coalesce(array_agg(limits[1]) FILTER (WHERE is_listed), '{}') AS limits,
           coalesce(array_agg(numbers[1]) FILTER (WHERE is_listed), '{}') AS numbers,
           coalesce(bool_or(job_limit IS NOT NULL), false) AS has_jobs
    FROM special
), made AS (
    INSERT INTO tidegate.leases (token, worker, expires_at, started_at, tasks, limits, numbers)
    SELECT nextval('tidegate.tokens'), $3, moment.now + $4, moment.now,
           sorted.holding || summed.free, sorted.limits, sorted.numbers
    FROM moment CROSS JOIN summed CROSS JOIN sorted
    WHERE summed.tasks IS NOT NULL AND NOT EXISTS (SELECT FROM begun)
    RETURNING token, expires_at
), grown AS (
    UPDATE tidegate.leases l
    SET tasks = l.tasks || sorted.holding || summed.free, limits = l.limits || sorted.limits,
        numbers = l.numbers || sorted.numbers
    FROM summed CROSS JOIN sorted
    WHERE l.token = (SELECT token FROM begun) AND summed.tasks IS NOT NULL
    RETURNING l.token, l.expires_at
), lease AS (
    SELECT token, expires_at FROM made UNION ALL SELECT token, expires_at FROM grown
), gone AS (
    DELETE FROM tidegate.ready WHERE ctid = ANY ((SELECT rows FROM summed CROSS JOIN lease)::tid[])
), started AS (
    INSERT INTO tidegate.running (task, token, holds_slots, started_at)
    SELECT special.task, lease.token, true, moment.now
    FROM special CROSS JOIN lease CROSS JOIN moment
    WHERE special.is_listed IS NOT TRUE AND (SELECT has_slot_holders FROM summed)
), unwritten AS (
    DELETE FROM tidegate.slots WHERE task = ANY (ARRAY (
        SELECT unnest(sorted.holding) FROM sorted CROSS JOIN lease))
), deltas AS (
    INSERT INTO tidegate.limit_deltas (limit_id, claimed_tasks, needs_drain, started_at)
    SELECT job_limit, count(*), bool_or(window_full), (SELECT now FROM moment)
    FROM special CROSS JOIN lease
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
    WHERE (SELECT has_slot_holders FROM summed)
)
-- Lists side by side: the tasks in their order; and who holds which slot.
SELECT seen.*, lease.token, lease.expires_at, summed.tasks, summed.lanes, summed.ranks, summed.tags,
       summed.ready_at, aged.stale, aged.lanes AS stale_lanes, slot.holders, slot.limits, slot.numbers, slot.names,
       ARRAY (SELECT DISTINCT job_limit FROM special WHERE job_limit IS NOT NULL) AS windows,
       aged.is_any OR summed.has_slot_holders AS has_special,
       (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint AS took_us,
       CASE WHEN lease.token IS NOT NULL THEN set_config('tidegate.new_lease', lease.token::text, true) END
FROM seen CROSS JOIN aged CROSS JOIN summed CROSS JOIN slot LEFT JOIN lease ON true
