SELECT token FROM tidegate.leases WHERE expires_at <= $1 AND tasks <> '{}'
ORDER BY expires_at, token LIMIT 100
