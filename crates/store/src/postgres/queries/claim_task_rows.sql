-- What runs under the lease that this transaction has begun, if any.
SELECT id, lane, kind, queue, coalesce(group_name, kind) AS group_name, weight, payload, spent,
       max_attempts, timeout_ms, job, workflow, arrival, trace
FROM tidegate.tasks WHERE id = ANY (ARRAY (
    SELECT unnest(tasks) FROM tidegate.leases
    WHERE token = nullif(current_setting('tidegate.lease', true), '')::bigint
    UNION ALL
    SELECT task FROM tidegate.running
    WHERE token = nullif(current_setting('tidegate.lease', true), '')::bigint))
