-- A look without a lock: which leases have run out? Under the lock they are read again. Those
-- that are still packed are unpacked before their turn comes.
SELECT token, worker, expires_at FROM tidegate.leases WHERE expires_at <= $1 AND tasks = '{}'
ORDER BY expires_at, token LIMIT 100
