update leases set expires_at = ?3 where token = ?1 and worker = ?2 and expires_at > ?4
