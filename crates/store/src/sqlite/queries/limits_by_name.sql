select id, name, capacity, source, base_capacity, base_source, version, since, held, waiting, aside,
    reserver, dirty, share_weight, share_last_tag, share_ahead, refused
from limits order by name
