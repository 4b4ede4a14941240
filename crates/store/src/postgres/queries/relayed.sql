-- One row where nothing is handed on, and else one for each who runs on. A claim that follows in the
-- same transaction adds to the lease.
SELECT relay.is_on, lease.token, lease.expires_at, next.task, next.kind, next.queue, next.group_name,
       1::bigint AS weight, next.payload, next.spent, next.max_attempts, next.timeout_ms,
       NULL::text AS job, NULL::text AS workflow, ARRAY[next.limit_id] AS limits,
       ARRAY[next.number] AS numbers, ARRAY[next.name] AS names,
       next.limit_id, next.refused, next.rank, next.line_tag, next.place,
       ARRAY (SELECT id FROM pass WHERE urgent) AS urgent,
       (SELECT set_config('tidegate.has_exits', (NOT is_on)::text, true) FROM relay),
       (SELECT set_config('tidegate.lease', token::text, true) FROM lease)
FROM relay CROSS JOIN seen
LEFT JOIN lease ON true
LEFT JOIN next ON relay.is_on
ORDER BY next.rank, next.tag, next.task
