-- What live workers say of these groups, in the order in which they registered.
SELECT r.worker, r.group_name, r.capacity
FROM tidegate.registrations r
WHERE r.group_name = ANY ($1)
  AND EXISTS (SELECT FROM tidegate.workers w WHERE w.id = r.worker AND w.alive_until > $2)
ORDER BY r.seq
