-- Lists side by side: who runs on with which slot, and where it stood in its line; and what is ready
-- first in lanes. A claim that follows in the same transaction adds to the lease.
-- Where nothing was done, `held` are the attempts that their leases list with a slot, and `may_admit`
-- says whether `hand_off_admit.sql` may succeed for them: some task is ready that comes before the next in line, or
-- an attempt has rows of its own.
SELECT relay.is_on, relay.may_admit,
       CASE WHEN relay.may_admit AND NOT relay.is_on THEN ARRAY (
           SELECT task FROM listed WHERE ends AND limit_id IS NOT NULL) END AS held,
       lease.token, lease.expires_at, relay.open, relay.open_attempts, relay.open_timeouts,
       relay.tasks, relay.holders, relay.limits, relay.numbers, relay.names, relay.parked_total,
       relay.ranks, relay.line_tags, relay.places, first.lanes AS first_lanes,
       first.ranks AS first_ranks, first.tags AS first_tags, first.tasks AS first_tasks,
       relay.last_task, relay.now, relay.next_due, relay.has_gate_work, NULL::bigint[] AS ready_at,
       EXISTS (SELECT FROM pass WHERE recheck_at IS NOT NULL) AS has_recheck,
       set_config('tidegate.skip_claim', (NOT relay.is_on)::text, true),
       CASE WHEN lease.token IS NOT NULL THEN set_config('tidegate.new_lease', lease.token::text, true) END
FROM relay CROSS JOIN first LEFT JOIN lease ON true
