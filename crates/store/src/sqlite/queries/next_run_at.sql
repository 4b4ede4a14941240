select min(run_at) from scheduled
