update kinds set registered_at = ?2 where name = ?1
