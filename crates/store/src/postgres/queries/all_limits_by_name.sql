-- With what happened since their rows were last locked.
SELECT id, name, capacity, source, base_capacity, base_source, version, applies_from_version,
       groups.held - deltas.freed_slots AS held, parked_total, waiting - deltas.dequeued AS waiting, skipped,
       reserving_task,
       dirty OR window_full AND deltas.claimed_tasks > 0 OR deltas.needs_drain AND waiting > deltas.dequeued AS dirty,
       share_weight, last_tag,
       in_window - deltas.claimed_tasks AS in_window, paused_by, recheck_at, min_concurrency, priority, delay_ms,
       greatest(next_start_at, deltas.started_at + delay_ms) AS next_start_at
FROM tidegate.limits l
CROSS JOIN LATERAL (
    SELECT coalesce(sum(cardinality(g.taken)), 0)::bigint AS held
    FROM tidegate.slot_groups g WHERE g.limit_id = l.id
) AS groups
CROSS JOIN LATERAL (
    SELECT coalesce(sum(p.claimed_tasks), 0)::bigint AS claimed_tasks,
           coalesce(sum(cardinality(p.freed_slots)), 0)::bigint AS freed_slots,
           coalesce(sum(p.dequeued), 0)::bigint AS dequeued, max(p.started_at) AS started_at,
           coalesce(bool_or(p.needs_drain OR p.recheck_at IS NOT NULL), false) AS needs_drain
    FROM tidegate.limit_deltas p WHERE p.limit_id = l.id
) AS deltas
ORDER BY name
