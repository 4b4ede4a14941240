-- The count ends where it is large enough: nobody asks how much too much it is.
SELECT (SELECT count(*) FROM (
            SELECT FROM tidegate.ready r
            WHERE NOT EXISTS (
                SELECT FROM tidegate.queues q JOIN tidegate.lanes n ON n.queue = q.name
                WHERE n.id = r.lane
            )
            LIMIT $2
        ) AS counted) AS ready,
       (SELECT count(*) FROM tidegate.leases WHERE expires_at <= $1) AS expired
