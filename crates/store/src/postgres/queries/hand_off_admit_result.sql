-- Lists side by side: who is ready, and where it stood in its line. The claim that follows in the same
-- transaction reads their lanes from the first of them on.
SELECT relay.is_on, relay.holders, relay.lanes, relay.limits, relay.parked_total, relay.ranks,
       relay.line_tags, relay.places, relay.tags, relay.limits_version, relay.now, relay.next_due, relay.has_gate_work,
       EXISTS (SELECT FROM pass WHERE recheck_at IS NOT NULL) AS has_recheck,
       set_config('tidegate.skip_claim', (NOT relay.is_on)::text, true),
       CASE WHEN relay.is_on AND relay.slots > 0 THEN set_config('tidegate.admitted_lanes', (
           (SELECT min(ARRAY[rank, tag, task]) FROM head) || relay.lanes)::text, true) END
FROM relay
