-- Takes off what was claimed of the jobs whose limits this transaction has locked.
WITH gone AS (
    DELETE FROM tidegate.passes WHERE limit_id = ANY ($1) RETURNING limit_id, tasks
)
SELECT limit_id, sum(tasks)::bigint AS tasks FROM gone GROUP BY limit_id
