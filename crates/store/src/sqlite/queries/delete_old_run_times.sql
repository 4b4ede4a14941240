delete from run_times where updated_at < ?1
