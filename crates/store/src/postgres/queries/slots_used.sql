-- The numbers that are taken, to find the lowest free ones, and by whom.
SELECT limit_id, array_agg(number) AS numbers, array_agg(task) AS tasks
FROM tidegate.holdings WHERE limit_id = ANY ($1) GROUP BY limit_id
