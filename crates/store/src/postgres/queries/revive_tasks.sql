-- Brings tasks that ended back, as if they had just come.
WITH gone AS (DELETE FROM tidegate.finished WHERE id = ANY ($1) RETURNING *)
INSERT INTO tidegate.tasks (id, lane, kind, queue, group_name, job, workflow, unique_key, weight,
                            priority, max_attempts, timeout_ms, due_at, created_at, payload, on_failure,
                            trace)
SELECT id, lane, kind, queue, group_name, job, workflow, unique_key, weight, priority, max_attempts,
       timeout_ms, $2, created_at, payload, on_failure, trace
FROM gone
