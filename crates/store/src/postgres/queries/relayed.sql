-- Lists side by side: who runs on with which slot; and who has left which line, and where it stood. A
-- claim that follows in the same transaction adds to the lease.
SELECT relay.is_on, relay.is_first, lease.token, lease.expires_at, seen.open, seen.open_attempts,
       seen.open_timeouts, handed.tasks, handed.tasks AS holders, handed.limits, handed.numbers,
       handed.names, gone.tasks AS gone, gone.lanes, gone.limits AS lines, gone.refused, gone.ranks,
       gone.tags, gone.places, gone.ready_tags, seen.limits_version, seen.now,
       ARRAY (SELECT id FROM pass WHERE urgent) AS urgent,
       set_config('tidegate.has_exits', (NOT relay.is_on)::text, true),
       CASE WHEN lease.token IS NOT NULL THEN set_config('tidegate.lease', lease.token::text, true) END
FROM relay CROSS JOIN seen CROSS JOIN handed
CROSS JOIN (
    SELECT array_agg(task) AS tasks, array_agg(lane) AS lanes, array_agg(limit_id) AS limits,
           array_agg(refused) AS refused, array_agg(rank) AS ranks, array_agg(line_tag) AS tags,
           array_agg(place) AS places, array_agg(tag) AS ready_tags
    FROM next
) AS gone
LEFT JOIN lease ON true
