-- Stores tasks of which nothing is to be asked but whether what is known still holds: that no limit has
-- begun since $1, that the kinds $2 have these default queues ($3), and that the lanes $14 are those of
-- these queues ($15) and kinds ($16). If so, gives the tasks' ids in their order; if not, stores nothing
-- and gives no row. $4 is the time, if it is not the server's.
WITH seen AS MATERIALIZED (
    SELECT c.virtual_time, c.limits_version,
           coalesce($4::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
    FROM tidegate.counters c
    WHERE c.limits_version = $1
      AND NOT EXISTS (
          SELECT FROM unnest($2::text[], $3::text[]) AS known (name, queue)
          LEFT JOIN LATERAL (
              SELECT queue FROM tidegate.kinds WHERE name = known.name OFFSET 0
          ) AS k ON true
          WHERE k.queue IS DISTINCT FROM known.queue)
      AND NOT EXISTS (
          SELECT FROM unnest($14::bigint[], $15::text[], $16::text[]) AS known (id, queue, kind)
          LEFT JOIN LATERAL (
              SELECT queue, kind FROM tidegate.lanes WHERE id = known.id OFFSET 0
          ) AS l ON true
          WHERE (l.queue, l.kind) IS DISTINCT FROM (known.queue, known.kind))
), new AS MATERIALIZED (
    SELECT nextval('tidegate.task_ids') AS id, one.*
    FROM seen CROSS JOIN unnest($5::bigint[], $6::text[], $7::text[], $8::text[], $9::int[],
                                $10::bigint[], $11::bigint[], $12::bytea[], $13::boolean[], $17::text[])
        AS one (lane, kind, queue, group_name, priority, max_attempts, timeout_ms, payload, is_limited, trace)
), stored AS (
    INSERT INTO tidegate.tasks (id, lane, kind, queue, group_name, weight, priority, max_attempts,
                                timeout_ms, payload, trace, due_at, created_at)
    SELECT id, lane, kind, queue, group_name, 1, priority, max_attempts, timeout_ms, payload, trace,
           seen.now, seen.now
    FROM new CROSS JOIN seen
), ready AS (
    -- A level of priority is worth a minute of waiting.
    INSERT INTO tidegate.ready (task, lane, rank, tag, limits_version, holds_slots, ready_at)
    SELECT id, lane, seen.now / 60000 - priority, seen.virtual_time, seen.limits_version, false,
           seen.now
    FROM new CROSS JOIN seen WHERE NOT new.is_limited
), inbox AS (
    INSERT INTO tidegate.inbox (task) SELECT id FROM new WHERE is_limited
)
SELECT seen.now, seen.virtual_time, ARRAY (SELECT id FROM new) AS ids, pg_notify('tidegate', '')
FROM seen
