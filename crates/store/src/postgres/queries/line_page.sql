-- The heads of the lines whose limits this transaction has locked: in turn, waiting for a
-- seat, and too heavy. More rows than the gate may look at, so no line seems to end early.
SELECT row.*
FROM unnest($1::bigint[]) AS of_limit (id)
CROSS JOIN LATERAL (
    (SELECT * FROM tidegate.line WHERE limit_id = of_limit.id AND class <= 1
     ORDER BY class, rank, tag, place LIMIT {page})
    UNION ALL
    (SELECT * FROM tidegate.line WHERE limit_id = of_limit.id AND class = 2
     ORDER BY rank, tag, place LIMIT {page})
    UNION ALL
    (SELECT * FROM tidegate.line WHERE limit_id = of_limit.id AND class = 3
     ORDER BY rank, tag, place LIMIT {page})
) AS row
