-- Ended tasks, locked: nobody removes them or brings them back meanwhile.
SELECT id, state, unique_key FROM tidegate.finished WHERE id = ANY ($1) ORDER BY id FOR UPDATE
