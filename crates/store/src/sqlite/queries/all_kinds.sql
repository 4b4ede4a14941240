select name, queue, max_attempts, timeout_ms, window_start_ms, window_end_ms, backoff_base_ms,
    backoff_cap_ms, remove_on_completed_days, remove_on_failed_days, max_crashes
from kinds order by name
