select token, worker, expires_at from lease order by token
