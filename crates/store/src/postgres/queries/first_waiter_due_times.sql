-- One look into the index for each line, however long it is.
SELECT l.id AS limit_id, head.due_at
FROM tidegate.limits l
CROSS JOIN LATERAL (
    SELECT due_at FROM tidegate.waiters WHERE limit_id = l.id
    ORDER BY wait_reason, rank, tag, admission_seq LIMIT 1
) AS head
WHERE l.waiting > 0 AND l.name NOT LIKE 'workflow:%'
