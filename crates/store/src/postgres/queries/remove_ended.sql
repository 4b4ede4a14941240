DELETE FROM tidegate.tasks WHERE id = ANY (ARRAY (
    SELECT id FROM tidegate.tasks WHERE remove_at <= $1
    ORDER BY remove_at, id LIMIT 1000 FOR UPDATE SKIP LOCKED))
