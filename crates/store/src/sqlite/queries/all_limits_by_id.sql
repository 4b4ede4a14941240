select id, name, capacity, source, base_capacity, base_source, version, applies_from_version, held, waiting, skipped,
    reserving_task, dirty, share_weight, last_tag, in_window, parked_total, paused_by, recheck_at,
    min_concurrency, priority, delay_ms, next_start_at
from limits order by id
