-- Groups that are not as they must be, by the capacity of their limit and by who holds what. Slots that
-- were given back without the limit's lock are still among those taken.
SELECT coalesce(l.name, 'no limit') AS name, coalesce(is_so.number, must_be.number) AS number,
       is_so.number IS NOT NULL AS is_there, is_so.capacity, is_so.taken::text,
       must_be.number IS NOT NULL AS is_due, must_be.capacity AS due_capacity,
       must_be.taken::text AS due_taken
FROM (
    SELECT g.limit_id, g.number, g.capacity,
           ARRAY (SELECT slot FROM unnest(g.taken) AS slot
                  WHERE slot <> ALL (ARRAY (SELECT unnest(p.freed_slots) FROM tidegate.limit_deltas p
                                            WHERE p.limit_id = g.limit_id))
                  ORDER BY slot) AS taken
    FROM tidegate.slot_groups g
) AS is_so
FULL JOIN tidegate.expected_slot_groups AS must_be
     ON must_be.limit_id = is_so.limit_id AND must_be.number = is_so.number
LEFT JOIN tidegate.limits l ON l.id = coalesce(is_so.limit_id, must_be.limit_id)
WHERE (is_so.number IS NULL OR must_be.number IS NULL
       OR is_so.capacity IS DISTINCT FROM must_be.capacity OR is_so.taken <> must_be.taken)
  -- One that is empty but for what was given back is taken away by whoever locks the limit.
  AND (must_be.number IS NOT NULL OR is_so.taken <> '{}' OR is_so.capacity > 0)
ORDER BY name, number
