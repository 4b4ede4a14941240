-- What waits at the gate: one index entry each.
SELECT EXISTS (SELECT FROM tidegate.arrived)
       OR EXISTS (SELECT FROM tidegate.scheduled WHERE run_at <= $1) AS arrivals,
       ARRAY (SELECT id FROM tidegate.limits WHERE dirty ORDER BY id LIMIT 64) AS dirty,
       ARRAY (SELECT task FROM tidegate.line WHERE class = 4 AND lane = ANY ($2)
              ORDER BY limit_id, class, rank, tag, place LIMIT 250) AS no_worker
