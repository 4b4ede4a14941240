-- With more tasks than count, the oldest fade: as `Pace::add` has it.
INSERT INTO tidegate.paces AS p (group_name, tasks, total_ms, heard_at)
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
    heard_at = excluded.heard_at
