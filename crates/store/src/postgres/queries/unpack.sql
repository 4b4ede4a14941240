-- Gives everything that runs under some leases a row of its own, and one for its slot; under all of
-- them where none are named. A task that two leases list runs under one of them.
WITH packed AS MATERIALIZED (
    SELECT token, tasks, limits, numbers, started_at FROM tidegate.leases
    WHERE token = ANY (coalesce($1, ARRAY (SELECT token FROM tidegate.leases)))
      AND tasks <> '{}'
    ORDER BY token FOR UPDATE
), emptied AS (
    UPDATE tidegate.leases SET tasks = '{}', limits = '{}', numbers = '{}'
    WHERE token = ANY (ARRAY (SELECT token FROM packed))
), one AS MATERIALIZED (
    SELECT packed.token, packed.started_at, listed.task, listed.limit_id, listed.number
    FROM packed
    CROSS JOIN LATERAL unnest(packed.tasks, packed.limits, packed.numbers)
         AS listed (task, limit_id, number)
), held AS (
    INSERT INTO tidegate.slots (limit_id, number, task)
    SELECT limit_id, number, task FROM one WHERE limit_id IS NOT NULL
    ON CONFLICT (limit_id, number) DO NOTHING
)
INSERT INTO tidegate.running (task, token, gated, started_at)
SELECT task, token, limit_id IS NOT NULL, started_at FROM one
ON CONFLICT (task) DO NOTHING
