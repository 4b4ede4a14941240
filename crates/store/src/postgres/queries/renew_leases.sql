UPDATE tidegate.leases SET expires_at = $2 WHERE token = ANY ($1)
