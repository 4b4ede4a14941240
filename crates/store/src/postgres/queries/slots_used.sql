-- The numbers that are taken, to find the lowest free ones, and by whom: by rows, and by leases that
-- list them.
SELECT limit_id, array_agg(number) AS numbers, array_agg(task) AS tasks
FROM (
    SELECT limit_id, number, task FROM tidegate.slots WHERE limit_id = ANY ($1)
    UNION ALL
    SELECT packed.limit_id, packed.number, packed.task
    FROM tidegate.leases l
    CROSS JOIN LATERAL unnest(l.limits, l.numbers, l.tasks) AS packed (limit_id, number, task)
    WHERE l.limits && $1 AND packed.limit_id = ANY ($1)
) AS used
GROUP BY limit_id
