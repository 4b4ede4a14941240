-- Picks from the one lane that a claim reads: one index range. No row is locked that is not wanted.
, picked AS MATERIALIZED (
    SELECT r.ctid AS row, r.task, r.lane, r.rank, r.tag, r.limits_version, r.holds_slots, r.ready_at
    FROM tidegate.ready r
    WHERE r.lane = (SELECT ids[1] FROM lane)
      AND (r.rank, r.tag, r.task) >= ((SELECT ranks[1] FROM lane), (SELECT tags[1] FROM lane),
                                      (SELECT tasks[1] FROM lane))
    ORDER BY r.rank, r.tag, r.task LIMIT (SELECT tasks FROM wanted) FOR UPDATE OF r SKIP LOCKED
)
