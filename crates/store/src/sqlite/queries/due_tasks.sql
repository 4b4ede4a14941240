select task from scheduled where run_at <= ?1 order by run_at, task limit ?2
