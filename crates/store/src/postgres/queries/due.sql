-- What is due. A task that somebody cancels just now is left to them.
SELECT task, run_at FROM tidegate.scheduled WHERE run_at <= $1
ORDER BY run_at, task LIMIT 1000 FOR UPDATE SKIP LOCKED
