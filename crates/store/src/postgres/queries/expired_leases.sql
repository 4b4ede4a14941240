-- Reads without a lock the leases that the reaper ends; it reads them again under the lock. Packed leases are
-- unpacked first. Of a large one only a part is, and this statement returns it for that part. A lease is left to its
-- worker while the last heartbeat of the worker is younger than the lease length of this heartbeat and the lease
-- expired less than that length ago. The worker is read by its primary key in a scalar subquery: the planner would
-- join an EXISTS.
SELECT token, worker, expires_at FROM tidegate.leases
WHERE expires_at <= $1
  AND (tasks = '{}' OR (SELECT true FROM tidegate.running r WHERE r.token = leases.token LIMIT 1))
  AND (SELECT w.heartbeat_expires_at > $1 AND leases.expires_at + w.heartbeat_lease_ms > $1
       FROM tidegate.workers w WHERE w.id = leases.worker) IS NOT TRUE
ORDER BY expires_at, token LIMIT 100
