select run_at from scheduled where task = ?1
