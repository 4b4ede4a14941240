-- Takes off what happened at limits without their lock, now that this transaction has it.
WITH gone AS (
    DELETE FROM tidegate.passes WHERE limit_id = ANY ($1)
    RETURNING limit_id, tasks, freed, taken, urgent
)
SELECT limit_id, sum(tasks)::bigint AS tasks, sum(freed)::bigint AS freed,
       sum(taken)::bigint AS taken, bool_or(urgent) AS urgent
FROM gone GROUP BY limit_id
