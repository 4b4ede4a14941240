-- Locks attempts of these leases ($1): at most $2, in the order of the leases.
SELECT task, token, holds_slots, cancel_requested, started_at FROM tidegate.running
WHERE task = ANY (ARRAY (
    SELECT r.task FROM unnest($1::bigint[]) AS lease (token)
    CROSS JOIN LATERAL (
        SELECT task FROM tidegate.running WHERE running.token = lease.token OFFSET 0
    ) AS r
    LIMIT $2))
  AND token = ANY ($1)
ORDER BY task FOR UPDATE
