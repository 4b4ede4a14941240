-- Ends attempts that went well and whose leases list them ($1 under $2, with the results $3): what
-- runs without slots leaves nothing to the gate. $4 are the leases, which this transaction has
-- locked, and $5 the time, if it is not the server's. All others are left as they are, and a claim
-- in the same transaction waits for them.
WITH moment AS MATERIALIZED (
    SELECT coalesce($5::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
), asked AS MATERIALIZED (
    SELECT n.task, n.token,
           -- Here and not in a WHERE, where it would become a join.
           (n.task, n.token) IN (SELECT unnest(l.tasks), l.token FROM tidegate.leases l
                                 WHERE l.token = ANY ($4)) AS is_listed
    FROM unnest($1::bigint[], $2::bigint[]) AS n (task, token)
), ending AS MATERIALIZED (
    SELECT task, token FROM asked WHERE is_listed
), removed AS (
    DELETE FROM tidegate.tasks t
    WHERE t.id = ANY (ARRAY (SELECT task FROM ending))
      AND t.kind = ANY (ARRAY (SELECT name FROM tidegate.kinds WHERE remove_on_completed_days = 0))
    RETURNING t.id, t.unique_key
), kept AS (
    UPDATE tidegate.tasks t
    SET state = 4, result = ($3::bytea[])[array_position($1::bigint[], t.id)],
        finished_at = (SELECT now FROM moment),
        remove_at = (SELECT now FROM moment) + 86400000 * (
            SELECT k.remove_on_completed_days FROM tidegate.kinds k WHERE k.name = t.kind)
    WHERE t.id = ANY (ARRAY (SELECT task FROM ending))
      AND (SELECT count(*) FROM ending) > (SELECT count(*) FROM removed)
      AND t.kind <> ALL (ARRAY (SELECT name FROM tidegate.kinds WHERE remove_on_completed_days = 0))
    RETURNING t.id, t.unique_key
), freed AS (
    DELETE FROM tidegate.unique_keys WHERE key = ANY (ARRAY (
        SELECT unique_key FROM removed WHERE unique_key IS NOT NULL
        UNION ALL SELECT unique_key FROM kept WHERE unique_key IS NOT NULL))
), rest AS MATERIALIZED (
    SELECT l.token, coalesce(array_agg(packed.task) FILTER (
               WHERE (packed.task, l.token) NOT IN (SELECT task, token FROM ending)), '{}') AS tasks,
           -- Others may run under it that have rows.
           (SELECT true FROM tidegate.running r WHERE r.token = l.token LIMIT 1) AS has_rows
    FROM tidegate.leases l CROSS JOIN LATERAL unnest(l.tasks) AS packed (task)
    WHERE l.token = ANY (ARRAY (SELECT token FROM ending))
    GROUP BY l.token
), ended AS (
    DELETE FROM tidegate.leases WHERE token = ANY (ARRAY (
        SELECT token FROM rest WHERE tasks = '{}' AND has_rows IS NULL))
), shrunk AS (
    UPDATE tidegate.leases l SET tasks = (SELECT tasks FROM rest WHERE rest.token = l.token)
    WHERE l.token = ANY (ARRAY (SELECT token FROM rest WHERE tasks <> '{}' OR has_rows))
)
SELECT ARRAY (SELECT task FROM ending) AS tasks,
       set_config('tidegate.has_exits',
                  ((SELECT count(*) FROM ending) < cardinality($1))::text, true)
