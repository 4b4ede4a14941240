-- Lists side by side: who runs on with which slot, and where in the line it stood. A claim that follows
-- in the same transaction adds to the lease.
SELECT relay.is_on, lease.token, lease.expires_at, seen.open, seen.open_attempts, seen.open_timeouts,
       handed.tasks, handed.tasks AS holders, handed.limits, handed.numbers, handed.names,
       handed.refused, handed.ranks, handed.tags, handed.places,
       ARRAY (SELECT id FROM pass WHERE urgent) AS urgent,
       set_config('tidegate.has_exits', (NOT relay.is_on)::text, true),
       CASE WHEN lease.token IS NOT NULL THEN set_config('tidegate.lease', lease.token::text, true) END
FROM relay CROSS JOIN seen CROSS JOIN handed LEFT JOIN lease ON true
