UPDATE tidegate.kinds SET seen_at = $3 WHERE name = ANY ($1) AND seen_at < $2
