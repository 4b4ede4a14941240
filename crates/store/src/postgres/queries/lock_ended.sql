-- Ended tasks, locked: nobody removes them or brings them back meanwhile.
SELECT id, state, unique_key FROM tidegate.tasks
WHERE id = ANY ($1) AND state IS NOT NULL ORDER BY id FOR UPDATE
