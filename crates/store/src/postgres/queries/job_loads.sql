-- Of every job with tasks past its line that have slots: since when the first of those that are ready is, and
-- how many run. Each is found by its slot, so what else is ready or runs is not read.
SELECT l.id AS limit_id, min(r.ready_at) AS ready_since, count(u.task) AS running
FROM tidegate.limits l
CROSS JOIN LATERAL (SELECT task FROM tidegate.slots WHERE limit_id = l.id OFFSET 0) AS s
LEFT JOIN LATERAL (SELECT ready_at FROM tidegate.ready WHERE task = s.task OFFSET 0) AS r ON true
LEFT JOIN LATERAL (SELECT task FROM tidegate.running WHERE task = s.task OFFSET 0) AS u ON true
WHERE l.name LIKE 'job:%'
GROUP BY l.id
