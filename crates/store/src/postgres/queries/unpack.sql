-- Gives everything that runs under some leases a row of its own, and one for its slot; under all of
-- them where none are named. Returns each task that runs already, and each slot that is held already, under
-- another lease: no transaction writes such rows, and the caller reports them.
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
    RETURNING limit_id, number, task
), started AS (
    INSERT INTO tidegate.running (task, token, gated, started_at)
    SELECT task, token, limit_id IS NOT NULL, started_at FROM one
    ON CONFLICT (task) DO NOTHING
    RETURNING task, token
)
SELECT task, token, NULL AS limit_name, NULL AS number
FROM (SELECT task, token FROM one EXCEPT ALL SELECT task, token FROM started) AS listed_twice
UNION ALL
SELECT task, NULL, coalesce((SELECT name FROM tidegate.limits WHERE id = limit_id), limit_id::text), number
FROM (
    SELECT limit_id, number, task FROM one WHERE limit_id IS NOT NULL
    EXCEPT ALL
    SELECT limit_id, number, task FROM held
) AS held_twice
