-- Of jobs with a reserve ($1) the first that are ready without its rank ($3), as many as the reserve has
-- slots ($2): they may get one. Who is being claimed is left alone.
SELECT admitted.task, admitted.lane, admitted.rank, admitted.tag, admitted.limits_version, admitted.holds_slots,
       admitted.ready_at
FROM unnest($1::bigint[], $2::bigint[]) AS job (id, slots)
CROSS JOIN LATERAL (
    SELECT r.task, r.lane, r.rank, r.tag, r.limits_version, r.holds_slots, r.ready_at
    FROM tidegate.slots s
    CROSS JOIN LATERAL (
        SELECT * FROM tidegate.ready WHERE task = s.task AND rank <> $3 FOR UPDATE SKIP LOCKED
    ) AS r
    WHERE s.limit_id = job.id ORDER BY s.number LIMIT job.slots
) AS admitted
