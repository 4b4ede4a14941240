select id, name, capacity, source, base_capacity, base_source, version, since, held, waiting, aside,
    reserver, dirty, share_weight, share_last_tag, share_ahead, refused, halt, look_at,
    share_min_concurrency, share_priority, share_delay_ms, share_next_at
from limits order by name
