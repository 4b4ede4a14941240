-- What runs under the lease that this transaction has begun, if any.
SELECT id, lane, kind, queue, coalesce(group_name, kind) AS group_name, weight, payload, attempts_used,
       max_attempts, timeout_ms, job, workflow, due_at, trace
FROM tidegate.tasks WHERE id = ANY (ARRAY (
    SELECT unnest(tasks) FROM tidegate.leases
    WHERE token = nullif(current_setting('tidegate.new_lease', true), '')::bigint
    UNION ALL
    SELECT task FROM tidegate.running
    WHERE token = nullif(current_setting('tidegate.new_lease', true), '')::bigint))
