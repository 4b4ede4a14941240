-- Picks from the one lane that a claim reads: one index range. No row is locked that is not wanted.
, picked AS MATERIALIZED (
    SELECT r.ctid AS row, r.task, r.lane, r.rank, r.tag, r.stamp, r.gated, r.since
    FROM tidegate.ready r
    WHERE r.lane = (SELECT id FROM lane)
      AND (r.rank, r.tag, r.task) >= ((SELECT rank FROM lane), (SELECT tag FROM lane),
                                      (SELECT task FROM lane))
    ORDER BY r.rank, r.tag, r.task LIMIT (SELECT tasks FROM wanted) FOR UPDATE OF r SKIP LOCKED
), cut AS (
    SELECT WHERE false
)
