update limits
set capacity = ?2, source = ?3, base_capacity = ?4, base_source = ?5, version = ?6, held = ?7,
    waiting = ?8, skipped = ?9, reserving_task = ?10, dirty = ?11, share_weight = ?12,
    last_tag = ?13, in_window = ?14, parked_total = ?15, paused_by = ?16, recheck_at = ?17,
    min_concurrency = ?18, priority = ?19, delay_ms = ?20, next_start_at = ?21
where id = ?1
