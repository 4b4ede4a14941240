select token, worker, expires_at from leases where token = ?1
