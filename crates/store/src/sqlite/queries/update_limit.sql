update limits
set capacity = ?2, source = ?3, base_capacity = ?4, base_source = ?5, version = ?6, held = ?7,
    waiting = ?8, aside = ?9, reserver = ?10, dirty = ?11, share_weight = ?12,
    share_last_tag = ?13, share_ahead = ?14, refused = ?15, halt = ?16, look_at = ?17,
    share_min_concurrency = ?18, share_priority = ?19, share_delay_ms = ?20, share_next_at = ?21
where id = ?1
