-- Of these leases ($1), those that list a task that also runs under another lease, or a slot that another task
-- holds as well.
WITH listed AS MATERIALIZED (
    SELECT l.token, one.task, one.limit_id, one.number FROM tidegate.leases l
    CROSS JOIN LATERAL unnest(l.tasks, l.limits, l.numbers) AS one (task, limit_id, number)
), tasks AS MATERIALIZED (
    SELECT task FROM (
        SELECT task FROM listed UNION ALL SELECT task FROM tidegate.running
    ) AS runs GROUP BY task HAVING count(*) > 1
), slots AS MATERIALIZED (
    SELECT limit_id, number FROM (
        SELECT limit_id, number FROM listed WHERE limit_id IS NOT NULL
        UNION ALL
        SELECT limit_id, number FROM tidegate.slots
    ) AS held GROUP BY limit_id, number HAVING count(*) > 1
)
SELECT DISTINCT token FROM listed
WHERE token = ANY ($1)
  AND (task IN (SELECT task FROM tasks) OR (limit_id, number) IN (SELECT limit_id, number FROM slots))
