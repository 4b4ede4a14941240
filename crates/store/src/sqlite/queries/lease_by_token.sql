select token, worker, expires_at from lease where token = ?1
