select tasks, total_ms from pace where group_name = ?1
