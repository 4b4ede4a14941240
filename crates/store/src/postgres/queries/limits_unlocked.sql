-- Limits without their lock: to look, never to decide who may take a slot.
SELECT id, name, capacity, source, base_capacity, base_source, version, since, refused,
       waiting, aside, reserver, dirty, share_weight, last_tag, ahead, halt, look_at, min_concurrency,
       priority, delay_ms, next_at
FROM tidegate.limits WHERE id = ANY ($1) ORDER BY id
