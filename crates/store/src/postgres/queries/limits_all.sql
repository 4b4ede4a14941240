-- With what was claimed of jobs since their limit was last locked.
SELECT id, name, capacity, source, base_capacity, base_source, version, since, held, refused,
       waiting, aside, reserver, dirty OR window_full AND passed.tasks > 0 AS dirty, share_weight, last_tag,
       ahead - passed.tasks AS ahead
FROM tidegate.limits l
CROSS JOIN LATERAL (
    SELECT coalesce(sum(p.tasks), 0)::bigint AS tasks
    FROM tidegate.passes p WHERE p.limit_id = l.id
) AS passed
ORDER BY name
