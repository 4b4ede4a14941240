-- Limits that nobody set, holds or awaits, and their groups. One that somebody has locked is about to be
-- used.
WITH idle AS MATERIALIZED (
    SELECT id FROM tidegate.limits l WHERE source = 0 AND waiting = 0 AND paused_by IS NULL
      AND (SELECT true FROM tidegate.slot_groups g
           WHERE g.limit_id = l.id AND g.taken <> '{}' LIMIT 1) IS NULL
    ORDER BY id LIMIT 1000 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM tidegate.slot_groups WHERE limit_id = ANY (ARRAY (SELECT id FROM idle))
)
DELETE FROM tidegate.limits WHERE id = ANY (ARRAY (SELECT id FROM idle))
