select token, worker, expires_at from leases order by token
