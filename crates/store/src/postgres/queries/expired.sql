-- A lease that is being renewed is passed over; one that was renewed is seen as it is now.
SELECT token, worker, expires_at FROM tidegate.leases WHERE expires_at <= $1
ORDER BY expires_at, token LIMIT 100 FOR UPDATE SKIP LOCKED
