-- The lowest free numbers, as the gate gives them.
INSERT INTO tidegate.slots (limit_id, number, task)
SELECT $1::bigint, number, $3::bigint
FROM generate_series(0, (SELECT coalesce(max(number), -1) FROM tidegate.slots
                         WHERE limit_id = $1::bigint) + $2::bigint) AS number
WHERE NOT EXISTS (SELECT FROM tidegate.slots s WHERE s.limit_id = $1::bigint AND s.number = number.number)
ORDER BY number LIMIT $2::bigint
