select task, run_at from scheduled
