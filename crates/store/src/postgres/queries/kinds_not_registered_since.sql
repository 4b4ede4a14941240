-- Kinds that only workers registered, all of them before $1, and whether anybody registers or serves
-- the kind at $2, whether it has a task, and whether its limit is more than registered or in use. To
-- look for a task reads all of them; whoever finds one notes that the kind is in use.
SELECT k.name,
       EXISTS (SELECT FROM tidegate.registrations r JOIN tidegate.workers w ON w.id = r.worker
               WHERE r.group_name = k.name AND w.alive_until > $2)
       OR EXISTS (SELECT FROM tidegate.lanes l JOIN tidegate.worker_lanes s ON s.lane = l.id
                  WHERE l.kind = k.name AND s.served_until > $2)
       OR EXISTS (SELECT FROM tidegate.limits l
                  WHERE l.name = 'group:' || k.name
                    AND (l.source NOT IN (0, 2) OR l.base_source NOT IN (0, 2) OR l.waiting > 0
                         OR EXISTS (SELECT FROM tidegate.slot_groups g
                                    WHERE g.limit_id = l.id AND g.taken <> '{}'))
                  OFFSET 0)
       OR EXISTS (SELECT FROM tidegate.tasks t WHERE t.kind = k.name)
       OR EXISTS (SELECT FROM tidegate.finished t WHERE t.kind = k.name) AS is_used
FROM tidegate.kinds k
WHERE k.registered_at < $1
ORDER BY k.name
