SELECT l.limit_id, l.wait_reason, l.due_at, limits.name, limits.capacity, limits.paused_by, limits.delay_ms,
       (SELECT coalesce(sum(cardinality(g.taken)), 0)::bigint FROM tidegate.slot_groups g
        WHERE g.limit_id = l.limit_id)
       - (SELECT coalesce(sum(cardinality(p.freed_slots)), 0)::bigint FROM tidegate.limit_deltas p
          WHERE p.limit_id = l.limit_id) AS held,
       (SELECT count(*) FROM tidegate.waiters o
        WHERE o.limit_id = l.limit_id
          AND (o.wait_reason, o.rank, o.tag, o.admission_seq)
              < (l.wait_reason, l.rank, l.tag, l.admission_seq)) AS tasks_before
FROM tidegate.waiters l JOIN tidegate.limits limits ON limits.id = l.limit_id
WHERE l.task = $1
