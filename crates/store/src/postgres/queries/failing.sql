-- What decides about failed attempts ($1 under the tokens $2) that their leases, which this transaction
-- has locked, list. An attempt without a row in the result needs the general path. $3 is the time, if it
-- is not the server's.
SELECT f.task, f.token, t.kind, t.spent, t.deaths, t.max_attempts,
       coalesce($3::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
FROM unnest($1::bigint[], $2::bigint[]) AS f (task, token)
CROSS JOIN LATERAL (
    SELECT FROM tidegate.leases WHERE token = f.token AND f.task = ANY (tasks) OFFSET 0
) AS listed
CROSS JOIN LATERAL (
    SELECT kind, spent, deaths, max_attempts FROM tidegate.tasks
    WHERE id = f.task AND job IS NULL AND workflow IS NULL OFFSET 0
) AS t
