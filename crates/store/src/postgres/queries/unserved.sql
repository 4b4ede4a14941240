-- Admitted long ago in a lane that no worker serves.
SELECT task, lane, rank, tag, stamp, gated, since FROM tidegate.ready
WHERE gated AND since < $1 AND lane <> ALL (
    SELECT lane FROM tidegate.worker_lanes WHERE served_until > $2)
ORDER BY lane, rank, tag, task LIMIT 250 FOR UPDATE SKIP LOCKED
