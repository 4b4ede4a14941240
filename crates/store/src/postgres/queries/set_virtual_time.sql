-- The last lock of a claim, and only where a job's task was claimed; nothing is waited for
-- behind it.
UPDATE tidegate.counters SET virtual_time = $1 WHERE virtual_time < $1
