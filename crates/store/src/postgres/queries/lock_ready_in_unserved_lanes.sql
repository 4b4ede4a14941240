-- Admitted long ago in a lane that no worker serves. Found by how long ago, and not in the order
-- of the lanes, which would be a walk through all that is ready.
SELECT task, lane, rank, tag, limits_version, holds_slots, ready_at FROM tidegate.ready
WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM tidegate.ready
    WHERE holds_slots AND ready_at < $1 AND lane <> ALL (ARRAY (
        SELECT lane FROM tidegate.worker_lanes WHERE served_until > $2))
    ORDER BY ready_at LIMIT 250))
FOR UPDATE SKIP LOCKED
