-- A running attempt that was asked to stop, or that holds slots from now on.
-- Fails, by a division by zero, where a row is missing: a COMMIT is sent together with this statement.
WITH put AS (
    UPDATE tidegate.running r SET cancel_requested = m.cancel_requested, holds_slots = m.holds_slots
    FROM unnest($1::bigint[], $2::boolean[], $3::boolean[]) AS m (task, cancel_requested, holds_slots)
    CROSS JOIN LATERAL (SELECT ctid FROM tidegate.running WHERE task = m.task OFFSET 0) AS row
    WHERE r.ctid = row.ctid
    RETURNING 1
)
SELECT 1 / (count(*) = cardinality($1))::int AS is_all FROM put
