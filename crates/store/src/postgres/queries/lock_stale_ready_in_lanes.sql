-- Of the first rows of some lanes ($1, each from where it was last looked at, $2 to $4), those that a
-- limit applies to which began after they were made ready. No more than `{page}` rows of a lane are
-- looked at, whatever applies to them.
SELECT r.task, r.lane, r.rank, r.tag, r.limits_version, r.holds_slots, r.ready_at
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS of_lane (id, rank, tag, task)
CROSS JOIN LATERAL (
    SELECT * FROM tidegate.ready
    WHERE lane = of_lane.id AND (rank, tag, task) >= (of_lane.rank, of_lane.tag, of_lane.task)
    ORDER BY rank, tag, task LIMIT {page} FOR UPDATE SKIP LOCKED
) AS r
CROSS JOIN LATERAL (SELECT * FROM tidegate.tasks WHERE id = r.task OFFSET 0) AS t
WHERE EXISTS (
    SELECT FROM tidegate.limits l
    WHERE l.name IN ('group:' || coalesce(t.group_name, t.kind), 'job:' || t.job,
                     'workflow:' || t.workflow)
      AND l.applies_from_version > r.limits_version
    OFFSET 0)
