update kind set seen_at = ?2 where name = ?1
