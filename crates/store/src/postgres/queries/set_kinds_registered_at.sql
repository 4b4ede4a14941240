UPDATE tidegate.kinds SET registered_at = $3 WHERE name = ANY ($1) AND registered_at < $2
