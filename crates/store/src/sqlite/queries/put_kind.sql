insert into kinds (name, queue, max_attempts, timeout_ms, window_start_ms, window_end_ms,
    backoff_base_ms, backoff_cap_ms, remove_on_completed_days, remove_on_failed_days, max_crashes,
    registered_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
on conflict (name) do update set
    queue = excluded.queue, max_attempts = excluded.max_attempts,
    timeout_ms = excluded.timeout_ms, window_start_ms = excluded.window_start_ms,
    window_end_ms = excluded.window_end_ms, backoff_base_ms = excluded.backoff_base_ms,
    backoff_cap_ms = excluded.backoff_cap_ms,
    remove_on_completed_days = excluded.remove_on_completed_days,
    remove_on_failed_days = excluded.remove_on_failed_days, max_crashes = excluded.max_crashes,
    -- Whoever else made it known counts on it.
    registered_at = iif(kinds.registered_at is null, null, excluded.registered_at)
