-- Ends attempts that went well and whose leases list them without slots ($1 under $2, with the
-- results $3): they leave nothing to the gate. $4 are the leases, which this transaction has
-- locked, and $5 the time, if it is not the server's. All others are left as they are, and a claim
-- in the same transaction waits for them. `end.sql` and `finished.sql` follow.
WITH moment AS MATERIALIZED (
    SELECT coalesce($5::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
), asked AS MATERIALIZED (
    SELECT n.task, n.token, n.result,
           -- Here and not in a WHERE, where it would become a join.
           (n.task, n.token) IN (
               SELECT listed.task, l.token
               FROM tidegate.leases l
               CROSS JOIN LATERAL unnest(l.tasks, l.limits) AS listed (task, limit_id)
               WHERE l.token = ANY ($4) AND listed.limit_id IS NULL) AS is_listed
    FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS n (task, token, result)
), ending AS MATERIALIZED (
    SELECT task, token, result FROM asked WHERE is_listed
)
