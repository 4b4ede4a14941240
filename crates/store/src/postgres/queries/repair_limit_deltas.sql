-- What happened at limits since they were last locked counts now.
WITH gone AS (DELETE FROM tidegate.limit_deltas
              RETURNING limit_id, claimed_tasks, freed_slots, dequeued, started_at,
                        needs_drain OR recheck_at IS NOT NULL AS needs_drain),
     deltas AS (SELECT limit_id, sum(claimed_tasks)::bigint AS claimed_tasks, sum(dequeued)::bigint AS dequeued,
                       max(started_at) AS started_at, bool_or(needs_drain) AS needs_drain
                FROM gone GROUP BY limit_id),
     freed AS (
         UPDATE tidegate.slot_groups g
         SET taken = ARRAY (SELECT slot FROM unnest(g.taken) AS slot
                            WHERE slot <> ALL (ARRAY (SELECT unnest(gone.freed_slots) FROM gone
                                                      WHERE gone.limit_id = g.limit_id)))
         WHERE g.limit_id IN (SELECT limit_id FROM gone WHERE freed_slots <> '{}')
     )
UPDATE tidegate.limits l
SET in_window = l.in_window - deltas.claimed_tasks, waiting = l.waiting - deltas.dequeued,
    dirty = l.dirty OR l.window_full AND deltas.claimed_tasks > 0 OR deltas.needs_drain AND l.waiting > deltas.dequeued,
    window_full = l.window_full AND deltas.claimed_tasks = 0,
    next_start_at = greatest(l.next_start_at, deltas.started_at + l.delay_ms)
FROM deltas WHERE l.id = deltas.limit_id
