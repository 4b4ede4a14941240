-- Picks from several lanes, in the order over all of them. Each is an index range of its own, and the
-- server merges them: it reads no further in any of them than it must. The loops keep that order, and the
-- LIMIT ends them: no row is locked that is not wanted.
, picked AS MATERIALIZED (
    SELECT r.ctid AS row, r.task, r.lane, r.rank, r.tag, r.limits_version, r.holds_slots, r.ready_at
    FROM lane CROSS JOIN LATERAL (
        SELECT * FROM ({lanes}) AS merged ORDER BY rank, tag, task OFFSET 0
    ) AS first
    JOIN tidegate.ready r ON r.ctid = first.row
    LIMIT (SELECT tasks FROM wanted) FOR UPDATE OF r SKIP LOCKED
)
