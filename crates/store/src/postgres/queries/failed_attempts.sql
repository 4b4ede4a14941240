-- Returns kind and counters of the failed attempts ($1, tokens $2) that their leases list and that have no job and
-- no workflow. The transaction has locked these leases. An attempt without a result row needs the general path. $3
-- is the time; NULL means the clock of the server.
SELECT f.task, f.token, t.kind, t.attempts_used, t.crashes, t.max_attempts,
       coalesce($3::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
FROM unnest($1::bigint[], $2::bigint[]) AS f (task, token)
CROSS JOIN LATERAL (
    SELECT FROM tidegate.leases WHERE token = f.token AND f.task = ANY (tasks) OFFSET 0
) AS listed
CROSS JOIN LATERAL (
    SELECT kind, attempts_used, crashes, max_attempts FROM tidegate.tasks
    WHERE id = f.task AND job IS NULL AND workflow IS NULL OFFSET 0
) AS t
