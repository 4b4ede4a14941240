-- Groups for which something else is registered than what live workers say. A group of which no live
-- worker says anything is not among them.
SELECT said.group_name
FROM (
    SELECT r.group_name,
           (array_agg(r.capacity ORDER BY r.seq DESC)
               FILTER (WHERE r.capacity IS NOT NULL))[1] AS capacity
    FROM tidegate.registrations r
    WHERE EXISTS (SELECT FROM tidegate.workers w WHERE w.id = r.worker AND w.alive_until > $1)
    GROUP BY r.group_name
) AS said
CROSS JOIN LATERAL (
    SELECT base_capacity, base_source FROM tidegate.limits
    WHERE name = 'group:' || said.group_name OFFSET 0
) AS registered
WHERE registered.base_source = 2 AND registered.base_capacity IS DISTINCT FROM said.capacity
ORDER BY said.group_name
