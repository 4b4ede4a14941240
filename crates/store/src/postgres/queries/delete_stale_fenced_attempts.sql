DELETE FROM tidegate.fenced_attempts f
WHERE NOT EXISTS (SELECT FROM tidegate.leases e WHERE e.token = f.token)
