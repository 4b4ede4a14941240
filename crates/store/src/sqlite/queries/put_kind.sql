replace into kind (name, queue, max_attempts, timeout_ms, window_start_ms, window_end_ms,
    backoff_base_ms, backoff_cap_ms, remove_on_completed_days, remove_on_failed_days, max_deaths)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
