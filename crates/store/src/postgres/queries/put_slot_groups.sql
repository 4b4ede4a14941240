-- Writes groups of limits whose locks this transaction has, and takes away ($5, $6) those that have neither
-- a part of the capacity nor a slot that is taken. Lists of slots come as texts: each has its own length.
WITH gone AS (
    DELETE FROM tidegate.slot_groups s
    USING unnest($5::bigint[], $6::int[]) AS old (limit_id, number)
    CROSS JOIN LATERAL (
        SELECT ctid FROM tidegate.slot_groups
        WHERE limit_id = old.limit_id AND number = old.number OFFSET 0
    ) AS row
    WHERE s.ctid = row.ctid
)
INSERT INTO tidegate.slot_groups (limit_id, number, capacity, taken)
SELECT limit_id, number, capacity, taken::integer[]
FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::text[]) AS new (limit_id, number, capacity, taken)
ON CONFLICT (limit_id, number) DO UPDATE SET capacity = excluded.capacity, taken = excluded.taken
