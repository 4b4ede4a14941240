DELETE FROM tidegate.fenced f
WHERE NOT EXISTS (SELECT FROM tidegate.leases e WHERE e.token = f.token)
