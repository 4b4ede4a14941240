insert into limits (id, name, capacity, source, base_capacity, base_source, version, since, held, waiting, aside,
    reserver, dirty, share_weight, share_last_tag, share_ahead, refused)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
