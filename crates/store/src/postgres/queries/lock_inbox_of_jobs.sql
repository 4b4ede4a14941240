-- Some tasks of every job at the gate, where more have arrived than one step looks at: as many as may pass
-- a job's line at once ($1), and fewer of each where there are many jobs. Only heads of the index are
-- read. The transaction has locked arrivals up to the id $2. One with a lower id was committed since then and
-- is left to the next step: a cancel locks arrivals in the order of their ids, so waiting for a lower one
-- could be a deadlock.
WITH RECURSIVE jobs AS (
    (SELECT job FROM tidegate.inbox WHERE job IS NOT NULL ORDER BY job LIMIT 1)
    UNION ALL
    SELECT next.job
    FROM jobs CROSS JOIN LATERAL (
        SELECT a.job FROM tidegate.inbox a WHERE a.job > jobs.job ORDER BY a.job LIMIT 1
    ) AS next
), first AS MATERIALIZED (
    SELECT job FROM jobs LIMIT 1000
)
SELECT task FROM tidegate.inbox
WHERE task = ANY (ARRAY (
    SELECT head.task
    FROM first CROSS JOIN LATERAL (
        SELECT a.task FROM tidegate.inbox a WHERE a.job = first.job ORDER BY a.task
        LIMIT (SELECT greatest(1, least($1::bigint, 1000 / count(*))) FROM first)
    ) AS head
))
  AND task > $2
ORDER BY task FOR UPDATE
