SELECT token, worker, expires_at FROM tidegate.leases ORDER BY token
