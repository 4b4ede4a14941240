-- One look into the index for each line, however long it is.
SELECT l.id AS limit_id, head.since
FROM tidegate.limits l
CROSS JOIN LATERAL (
    SELECT since FROM tidegate.line WHERE limit_id = l.id
    ORDER BY class, rank, tag, place LIMIT 1
) AS head
WHERE l.waiting > 0 AND l.name NOT LIKE 'workflow:%'
