-- Ready tasks that hold slots of a limit ($1), those with the highest numbers first; one that holds several
-- comes with each. Nothing is locked.
SELECT r.task
FROM tidegate.slots s
CROSS JOIN LATERAL (SELECT task FROM tidegate.ready WHERE task = s.task OFFSET 0) AS r
WHERE s.limit_id = $1
ORDER BY s.number DESC LIMIT {page}
