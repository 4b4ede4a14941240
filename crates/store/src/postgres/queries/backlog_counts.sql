-- The count ends where it is large enough: nobody asks how much too much it is.
-- `abandoned` has the condition of `expired_leases.sql`.
SELECT (SELECT count(*) FROM (
            SELECT FROM tidegate.ready r
            WHERE NOT EXISTS (
                SELECT FROM tidegate.paused_queues q JOIN tidegate.lanes n ON n.queue = q.name
                WHERE n.id = r.lane
            )
            LIMIT $2
        ) AS counted) AS ready,
       (SELECT count(*) FROM tidegate.leases
        WHERE expires_at <= $1
          AND (SELECT w.heartbeat_expires_at > $1 AND leases.expires_at + w.heartbeat_lease_ms > $1
               FROM tidegate.workers w WHERE w.id = leases.worker) IS NOT TRUE) AS abandoned
