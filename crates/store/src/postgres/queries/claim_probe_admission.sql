-- What it is that waits at the gate. `claim_probe.sql` comes before. The parts of `due` are put in order
-- behind OFFSET: a server that merges them would read every row for the order of ids.
SELECT EXISTS (SELECT FROM tidegate.inbox WHERE task >= $6) OR coalesce(seen.next_due <= seen.now, false)
           AS arrivals,
       ARRAY (SELECT DISTINCT id FROM (
                  SELECT id FROM tidegate.limits WHERE dirty
                  UNION ALL
                  SELECT limit_id FROM tidegate.limit_deltas WHERE needs_drain
                  UNION ALL
                  SELECT limit_id FROM tidegate.limit_deltas WHERE recheck_at <= seen.now
                  UNION ALL
                  SELECT id FROM tidegate.limits WHERE recheck_at <= seen.now
                  OFFSET 0
              ) AS due ORDER BY id LIMIT 64) AS dirty,
       ARRAY (SELECT parked.task
              FROM unnest(seen.open) AS open (id) CROSS JOIN LATERAL (
                  SELECT task, limit_id, rank, tag, admission_seq FROM tidegate.waiters
                  WHERE wait_reason = 4 AND lane = open.id
                  ORDER BY limit_id, rank, tag, admission_seq LIMIT 250
              ) AS parked
              ORDER BY parked.limit_id, parked.rank, parked.tag, parked.admission_seq
              LIMIT 250) AS no_worker
FROM seen
