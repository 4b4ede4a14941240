-- Fails, by a division by zero, where a row is missing: a COMMIT is sent together with this statement.
WITH put AS (
    UPDATE tidegate.tasks t SET attempts_used = n.attempts_used, crashes = n.crashes, error = n.error,
                                due_at = n.due_at
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[])
         AS n (task, attempts_used, crashes, error, due_at)
    CROSS JOIN LATERAL (SELECT ctid FROM tidegate.tasks WHERE id = n.task OFFSET 0) AS row
    WHERE t.ctid = row.ctid
    RETURNING 1
)
SELECT 1 / (count(*) = cardinality($1))::int AS is_all FROM put
