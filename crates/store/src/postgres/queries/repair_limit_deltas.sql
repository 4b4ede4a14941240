-- What happened at limits since they were last locked counts now.
WITH gone AS (DELETE FROM tidegate.passes
              RETURNING limit_id, tasks, freed, taken, started_at, urgent OR look_at IS NOT NULL AS urgent),
     passed AS (SELECT limit_id, sum(tasks)::bigint AS tasks, sum(taken)::bigint AS taken,
                       max(started_at) AS started_at, bool_or(urgent) AS urgent
                FROM gone GROUP BY limit_id),
     freed AS (
         UPDATE tidegate.slot_groups g
         SET taken = ARRAY (SELECT slot FROM unnest(g.taken) AS slot
                            WHERE slot <> ALL (ARRAY (SELECT unnest(gone.freed) FROM gone
                                                      WHERE gone.limit_id = g.limit_id)))
         WHERE g.limit_id IN (SELECT limit_id FROM gone WHERE freed <> '{}')
     )
UPDATE tidegate.limits l
SET ahead = l.ahead - passed.tasks, waiting = l.waiting - passed.taken,
    dirty = l.dirty OR l.window_full AND passed.tasks > 0 OR passed.urgent AND l.waiting > passed.taken,
    window_full = l.window_full AND passed.tasks = 0,
    next_at = greatest(l.next_at, passed.started_at + l.delay_ms)
FROM passed WHERE l.id = passed.limit_id
