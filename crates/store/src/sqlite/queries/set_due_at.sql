update tasks set due_at = ?2 where id = ?1
