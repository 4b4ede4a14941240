-- The numbers that are taken, to find the lowest free ones.
SELECT limit_id, array_agg(number) AS numbers
FROM tidegate.slots WHERE limit_id = ANY ($1) GROUP BY limit_id
