-- Picks from several lanes, in the order over all of them. Each is an index range of its own, of
-- `{page}` rows: where that was too little, nothing is taken that sorts behind what was not read, and
-- `cut` says that there may be more. The outer LIMIT stops the locking: no row is locked that is not
-- wanted.
, candidate AS MATERIALIZED (
    SELECT first.*
    FROM lane CROSS JOIN LATERAL (
        SELECT r.ctid AS row, r.rank, r.tag, r.task,
               row_number() OVER (ORDER BY r.rank, r.tag, r.task) AS place
        FROM tidegate.ready r
        WHERE r.lane = lane.id AND (r.rank, r.tag, r.task) >= (lane.rank, lane.tag, lane.task)
        ORDER BY r.rank, r.tag, r.task LIMIT {page}
    ) AS first
), cut AS MATERIALIZED (
    SELECT rank, tag, task FROM candidate WHERE place = {page} ORDER BY rank, tag, task LIMIT 1
), picked AS MATERIALIZED (
    SELECT r.ctid AS row, r.task, r.lane, r.rank, r.tag, r.stamp, r.gated, r.since
    FROM (
        -- In their order before they are looked at, which ends with those that are wanted.
        SELECT row, rank, tag, task FROM candidate
        WHERE NOT EXISTS (SELECT FROM cut)
           OR (rank, tag, task) <= ((SELECT rank FROM cut), (SELECT tag FROM cut),
                                    (SELECT task FROM cut))
        ORDER BY rank, tag, task
    ) AS first
    JOIN tidegate.ready r ON r.ctid = first.row
    ORDER BY first.rank, first.tag, first.task
    LIMIT (SELECT tasks FROM wanted) FOR UPDATE OF r SKIP LOCKED
)
