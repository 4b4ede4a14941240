-- Limits without their lock: to look, never to decide who may take a slot.
SELECT id, name, capacity, source, base_capacity, base_source, version, applies_from_version, parked_total,
       waiting, skipped, reserving_task, dirty, share_weight, last_tag, in_window, paused_by, recheck_at,
       min_concurrency, priority, delay_ms, next_start_at
FROM tidegate.limits WHERE id = ANY ($1) ORDER BY id
