insert into limits (id, name, capacity, source, base_capacity, base_source, version, applies_from_version, held,
    waiting, skipped, reserving_task, dirty, share_weight, last_tag, in_window, parked_total, paused_by, recheck_at,
    min_concurrency, priority, delay_ms, next_start_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
    ?18, ?19, ?20, ?21, ?22, ?23)
