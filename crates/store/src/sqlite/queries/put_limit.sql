update limits
set capacity = ?2, source = ?3, base_capacity = ?4, base_source = ?5, version = ?6, held = ?7,
    waiting = ?8, aside = ?9, reserver = ?10, dirty = ?11, share_weight = ?12,
    share_last_tag = ?13, share_ahead = ?14, refused = ?15
where id = ?1
