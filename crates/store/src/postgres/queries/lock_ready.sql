-- The first ready rows over all lanes that nobody else is taking. Every lane is an index range
-- of its own, and the outer LIMIT stops the locking: no row is locked that is not wanted.
SELECT r.task, r.lane, r.rank, r.tag, r.stamp, r.gated, r.since
FROM unnest($1::bigint[]) AS of_lane (id)
CROSS JOIN LATERAL (
    SELECT task, rank, tag FROM tidegate.ready WHERE lane = of_lane.id
    ORDER BY rank, tag, task LIMIT $2
) AS candidate
JOIN tidegate.ready r ON r.task = candidate.task
ORDER BY candidate.rank, candidate.tag, candidate.task
LIMIT $3
FOR UPDATE OF r SKIP LOCKED
