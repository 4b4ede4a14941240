-- Packed leases that the reaper ends, by the condition of `expired_leases.sql`, and how many attempts they list.
SELECT token, cardinality(tasks)::bigint AS attempts FROM tidegate.leases WHERE expires_at <= $1 AND tasks <> '{}'
  AND (SELECT w.heartbeat_expires_at > $1 AND leases.expires_at + w.heartbeat_lease_ms > $1
       FROM tidegate.workers w WHERE w.id = leases.worker) IS NOT TRUE
ORDER BY expires_at, token LIMIT 100
