SELECT token, worker, expires_at FROM tidegate.leases
WHERE token = ANY ($1) ORDER BY token FOR UPDATE
