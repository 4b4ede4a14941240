select tasks, total_ms from run_times where group_name = ?1
