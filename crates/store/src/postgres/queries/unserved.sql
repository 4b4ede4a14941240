-- Admitted long ago in a lane that no live worker serves.
SELECT task, lane, rank, tag, stamp, gated, since FROM tidegate.ready
WHERE gated AND since < $1 AND lane <> ALL (
    SELECT l.lane FROM tidegate.worker_lanes l JOIN tidegate.workers w ON w.id = l.worker
    WHERE w.alive_until > $2)
ORDER BY lane, rank, tag, task LIMIT 250 FOR UPDATE SKIP LOCKED
