-- With what happened since their rows were last locked.
SELECT id, name, capacity, source, base_capacity, base_source, version, since,
       groups.held - passed.freed AS held, refused, waiting - passed.taken AS waiting, aside, reserver,
       dirty OR window_full AND passed.tasks > 0 OR passed.urgent AND waiting > passed.taken AS dirty,
       share_weight, last_tag,
       ahead - passed.tasks AS ahead, halt, look_at, min_concurrency, priority, delay_ms,
       greatest(next_at, passed.started_at + delay_ms) AS next_at
FROM tidegate.limits l
CROSS JOIN LATERAL (
    SELECT coalesce(sum(cardinality(g.taken)), 0)::bigint AS held
    FROM tidegate.slot_groups g WHERE g.limit_id = l.id
) AS groups
CROSS JOIN LATERAL (
    SELECT coalesce(sum(p.tasks), 0)::bigint AS tasks,
           coalesce(sum(cardinality(p.freed)), 0)::bigint AS freed,
           coalesce(sum(p.taken), 0)::bigint AS taken, max(p.started_at) AS started_at,
           coalesce(bool_or(p.urgent OR p.look_at IS NOT NULL), false) AS urgent
    FROM tidegate.passes p WHERE p.limit_id = l.id
) AS passed
ORDER BY name
