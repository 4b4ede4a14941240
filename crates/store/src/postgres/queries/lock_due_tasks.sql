-- Tasks that are due, for the gatekeeper. A task that a concurrent transaction cancels is left to it.
SELECT task, run_at FROM tidegate.scheduled
WHERE run_at <= (SELECT nullif(current_setting('tidegate.admission_time', true), '')::bigint)
ORDER BY run_at, task LIMIT 1000 FOR UPDATE SKIP LOCKED
