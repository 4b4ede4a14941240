-- Limits that nobody set, holds or awaits. One that somebody has locked is about to be used.
DELETE FROM tidegate.limits WHERE id = ANY (ARRAY (
    SELECT id FROM tidegate.limits WHERE source = 0 AND held = 0 AND waiting = 0
    ORDER BY id LIMIT 1000 FOR UPDATE SKIP LOCKED))
