SELECT l.limit_id, l.class, l.since, limits.name, limits.capacity, limits.halt, limits.delay_ms,
       (SELECT coalesce(sum(cardinality(g.taken)), 0)::bigint FROM tidegate.slot_groups g
        WHERE g.limit_id = l.limit_id)
       - (SELECT coalesce(sum(cardinality(p.freed)), 0)::bigint FROM tidegate.passes p
          WHERE p.limit_id = l.limit_id) AS held,
       (SELECT count(*) FROM tidegate.line o
        WHERE o.limit_id = l.limit_id
          AND (o.class, o.rank, o.tag, o.place) < (l.class, l.rank, l.tag, l.place)) AS ahead
FROM tidegate.line l JOIN tidegate.limits limits ON limits.id = l.limit_id
WHERE l.task = $1
