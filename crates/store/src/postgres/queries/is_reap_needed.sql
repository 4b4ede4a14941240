-- Whether the reaper has anything to end: an expired lease by the condition of `expired_leases.sql`, a task that was
-- admitted long ago ($2 ms) in a lane that no worker serves, or the row of a worker that died long ago ($3 ms).
-- $1 is the time, if it is not the server's.
WITH moment AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
)
SELECT now,
       EXISTS (SELECT FROM tidegate.leases
               WHERE expires_at <= moment.now
                 AND (SELECT w.heartbeat_expires_at > moment.now
                             AND leases.expires_at + w.heartbeat_lease_ms > moment.now
                      FROM tidegate.workers w WHERE w.id = leases.worker) IS NOT TRUE)
       OR EXISTS (SELECT FROM tidegate.workers WHERE alive_until < moment.now - $3)
       OR EXISTS (SELECT FROM tidegate.ready
                  WHERE holds_slots AND ready_at < moment.now - $2 AND lane <> ALL (ARRAY (
                      SELECT lane FROM tidegate.worker_lanes WHERE served_until > moment.now)))
           AS is_any
FROM moment
