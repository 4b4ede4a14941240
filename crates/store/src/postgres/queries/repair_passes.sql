-- What happened at limits since they were last locked counts now.
WITH gone AS (DELETE FROM tidegate.passes RETURNING limit_id, tasks, freed, taken),
     passed AS (SELECT limit_id, sum(tasks)::bigint AS tasks, sum(freed)::bigint AS freed,
                       sum(taken)::bigint AS taken FROM gone GROUP BY limit_id)
UPDATE tidegate.limits l
SET ahead = l.ahead - passed.tasks, held = l.held - passed.freed,
    waiting = l.waiting - passed.taken, dirty = l.dirty OR l.waiting > passed.taken,
    window_full = false
FROM passed WHERE l.id = passed.limit_id
