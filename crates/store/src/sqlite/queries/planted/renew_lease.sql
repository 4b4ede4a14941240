update lease set expires_at = ?3 where token = ?1 and worker = ?2 and ?4 > 0
