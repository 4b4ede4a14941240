delete from scheduled where task = ?1
