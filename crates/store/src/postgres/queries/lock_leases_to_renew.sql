-- Less than whoever ends a lease locks: a handler that submits while it runs keeps it from ending, and
-- not from being renewed.
SELECT token, worker, expires_at FROM tidegate.leases
WHERE token = ANY ($1) ORDER BY token FOR NO KEY UPDATE
