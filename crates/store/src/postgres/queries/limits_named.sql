SELECT id, name, capacity, source, base_capacity, base_source, version, since, refused,
       waiting, aside, reserver, dirty, share_weight, last_tag, ahead
FROM tidegate.limits WHERE name = ANY ($1)
