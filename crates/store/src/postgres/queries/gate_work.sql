-- What waits at the gate. Each answer is the head of an index; nothing is read that is not
-- looked at next.
SELECT EXISTS (SELECT FROM tidegate.arrived)
       OR EXISTS (SELECT FROM tidegate.scheduled WHERE run_at <= $1) AS arrivals,
       ARRAY (SELECT id FROM tidegate.limits WHERE dirty ORDER BY id LIMIT 64) AS dirty,
       ARRAY (SELECT parked.task
              FROM unnest($2::bigint[]) AS of_lane (id)
              CROSS JOIN LATERAL (
                  SELECT task, limit_id, rank, tag, place FROM tidegate.line
                  WHERE class = 4 AND lane = of_lane.id
                  ORDER BY limit_id, rank, tag, place LIMIT 250
              ) AS parked
              ORDER BY parked.limit_id, parked.rank, parked.tag, parked.place
              LIMIT 250) AS no_worker
