insert into limits (id, name, capacity, source, base_capacity, base_source, version, since, held, waiting, aside,
    reserver, dirty, share_weight, share_last_tag, share_ahead, refused, halt, look_at,
    share_min_concurrency, share_priority, share_delay_ms, share_next_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
    ?18, ?19, ?20, ?21, ?22, ?23)
