-- With more tasks than count, the oldest fade: as the run-time statistics of the rules have it.
INSERT INTO tidegate.run_times AS p (group_name, tasks, total_ms, updated_at)
SELECT r.group_name, sum.tasks, sum.total_ms, $4
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS r (group_name, tasks, total_ms)
CROSS JOIN LATERAL (
    SELECT least(r.tasks, 256) AS tasks,
           CASE WHEN r.tasks > 256 THEN trunc(r.total_ms::numeric * 256 / r.tasks)
                ELSE r.total_ms END::bigint AS total_ms
) AS sum
ORDER BY r.group_name
ON CONFLICT (group_name) DO UPDATE
SET tasks = least(p.tasks + excluded.tasks, 256),
    total_ms = CASE WHEN p.tasks + excluded.tasks > 256
                    THEN trunc((p.total_ms + excluded.total_ms)::numeric * 256
                               / (p.tasks + excluded.tasks))
                    ELSE p.total_ms + excluded.total_ms END::bigint,
    updated_at = excluded.updated_at
