-- Every group as it must be, by the capacity of its limit and by who holds what.
WITH gone AS (
    DELETE FROM tidegate.slot_groups g
    WHERE NOT EXISTS (SELECT FROM tidegate.expected_slot_groups d
                      WHERE d.limit_id = g.limit_id AND d.number = g.number)
)
INSERT INTO tidegate.slot_groups SELECT * FROM tidegate.expected_slot_groups
ON CONFLICT (limit_id, number) DO UPDATE SET capacity = excluded.capacity, taken = excluded.taken
