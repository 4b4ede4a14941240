-- What was claimed of jobs since their limits were last locked counts now.
WITH gone AS (DELETE FROM tidegate.passes RETURNING limit_id, tasks),
     passed AS (SELECT limit_id, sum(tasks)::bigint AS tasks FROM gone GROUP BY limit_id)
UPDATE tidegate.limits l
SET ahead = l.ahead - passed.tasks, dirty = l.dirty OR l.waiting > 0, window_full = false
FROM passed WHERE l.id = passed.limit_id
