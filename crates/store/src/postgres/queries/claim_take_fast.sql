-- Hands out what was picked, under one new lease that lists it. All or nothing: where one of them
-- holds slots, or a limit has begun since it was made ready, they are only locked, and `claim_take_general.sql` has
-- to do it.
, summed AS MATERIALIZED (
    SELECT array_agg(task) AS tasks, array_agg(lane) AS lanes, array_agg(rank) AS ranks,
           array_agg(tag) AS tags, array_agg(ready_at) AS ready_at, array_agg(row) AS rows,
           bool_and(NOT holds_slots AND limits_version >= (SELECT limits_version FROM seen)) AS is_plain
    FROM picked
), lease AS (
    INSERT INTO tidegate.leases (token, worker, expires_at, started_at, tasks)
    SELECT nextval('tidegate.tokens'), $3, moment.now + $4, moment.now, summed.tasks
    FROM moment CROSS JOIN summed WHERE summed.is_plain
    RETURNING token, expires_at
), gone AS (
    DELETE FROM tidegate.ready WHERE ctid = ANY ((SELECT rows FROM summed CROSS JOIN lease)::tid[])
)
-- Lists side by side: the tasks in their order.
SELECT seen.*, lease.token, lease.expires_at, summed.tasks, summed.lanes, summed.ranks, summed.tags,
       summed.ready_at, NULL::bigint[] AS stale, NULL::bigint[] AS stale_lanes, NULL::bigint[] AS holders,
       NULL::bigint[] AS limits, NULL::bigint[] AS numbers, NULL::text[] AS names, '{}'::bigint[] AS windows,
       false AS has_special,
       (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint AS took_us,
       CASE WHEN lease.token IS NOT NULL THEN set_config('tidegate.new_lease', lease.token::text, true) END
FROM seen CROSS JOIN summed LEFT JOIN lease ON true
