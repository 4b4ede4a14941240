-- All that a claim decides by before it takes anything: the time, the lanes the worker serves
-- and when they are open, what waits at the gate, and whether the worker has to be noted. Each
-- answer is the head of an index; nothing is read that is not looked at next.
WITH lanes AS MATERIALIZED (
    SELECT l.id, l.queue, l.kind, k.window_start_ms, k.window_end_ms,
           EXISTS (SELECT FROM tidegate.worker_lanes w WHERE w.worker = $3 AND w.lane = l.id)
               AS is_noted,
           EXISTS (SELECT FROM tidegate.ready r WHERE r.lane = l.id) AS has_ready
    FROM tidegate.lanes l LEFT JOIN tidegate.kinds k ON k.name = l.kind
    WHERE l.queue = ANY ($1) AND l.kind = ANY ($2)
)
SELECT c.virtual_time, c.limits_version, moment.now,
       ARRAY (SELECT id FROM lanes ORDER BY id) AS lanes,
       ARRAY (SELECT window_start_ms FROM lanes ORDER BY id) AS window_starts,
       ARRAY (SELECT window_end_ms FROM lanes ORDER BY id) AS window_ends,
       EXISTS (SELECT FROM lanes WHERE has_ready) AS has_ready,
       -- Noted for at least three quarters of its lease, it need not be noted again.
       EXISTS (SELECT FROM tidegate.workers WHERE id = $3 AND alive_until >= moment.now + $4)
           AND NOT EXISTS (SELECT FROM lanes WHERE NOT is_noted) AS is_noted,
       EXISTS (SELECT FROM tidegate.arrived)
           OR EXISTS (SELECT FROM tidegate.scheduled WHERE run_at <= moment.now) AS arrivals,
       ARRAY (SELECT id FROM tidegate.limits WHERE dirty ORDER BY id LIMIT 64) AS dirty,
       ARRAY (SELECT parked.task
              FROM lanes CROSS JOIN LATERAL (
                  SELECT task, limit_id, rank, tag, place FROM tidegate.line
                  WHERE class = 4 AND lane = lanes.id
                  ORDER BY limit_id, rank, tag, place LIMIT 250
              ) AS parked
              ORDER BY parked.limit_id, parked.rank, parked.tag, parked.place
              LIMIT 250) AS no_worker
FROM tidegate.counters c
CROSS JOIN LATERAL (
    SELECT coalesce($5::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
) AS moment
