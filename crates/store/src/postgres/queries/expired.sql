-- A look without a lock: which leases have run out? Under the lock they are read again.
SELECT token, worker, expires_at FROM tidegate.leases WHERE expires_at <= $1
ORDER BY expires_at, token LIMIT 100
