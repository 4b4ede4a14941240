-- Ends attempts whose leases list them without slots ($1 under $2, with the results $3, which are NULL for
-- attempts that failed: `fail_tasks_fast.sql` writes their tasks): they leave nothing to the gate. $4 are the
-- leases, which this transaction has locked, and $5 the time, if it is not the server's. All others are left as
-- they are, and a claim in the same transaction waits for them. `complete_tasks.sql` and
-- `finish_fast_result.sql` follow.
WITH moment AS MATERIALIZED (
    SELECT coalesce($5::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
), listed AS MATERIALIZED (
    SELECT l.token, packed.task, packed.limit_id, packed.number,
           -- Here and not in a WHERE, where it would become a join.
           packed.limit_id IS NULL AND (packed.task, l.token) IN (
               SELECT * FROM unnest($1::bigint[], $2::bigint[])) AS ends
    FROM tidegate.leases l
    CROSS JOIN LATERAL unnest(l.tasks, l.limits, l.numbers) AS packed (task, limit_id, number)
    WHERE l.token = ANY ($4)
), ending AS MATERIALIZED (
    SELECT coalesce(array_agg(task) FILTER (WHERE task <> ALL (failed.tasks)), '{}') AS tasks,
           coalesce(array_agg(task), '{}') AS attempts, $4::bigint[] AS leases,
           $1::bigint[] AS told, $3::bytea[] AS results, (SELECT now FROM moment) AS now
    FROM listed CROSS JOIN (
        SELECT ARRAY (SELECT task FROM unnest($1::bigint[], $3::bytea[]) AS one (task, result)
                      WHERE result IS NULL) AS tasks
    ) AS failed
    WHERE ends
)
