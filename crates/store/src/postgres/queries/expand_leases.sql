-- Gives tasks that leases list ($2, or all) a row of their own, and one for their slot; under some leases
-- ($1), or under all; no more than $3 tasks, if that is given. The other tasks of the leases stay listed. Returns each task that runs already, and each
-- slot that is held already, under another lease: no transaction writes such rows, and the caller reports them.
WITH packed AS MATERIALIZED (
    SELECT token, tasks, limits, numbers, started_at FROM tidegate.leases
    WHERE token = ANY (coalesce($1, ARRAY (SELECT token FROM tidegate.leases)))
      AND tasks <> '{}' AND ($2::bigint[] IS NULL OR tasks && $2)
    ORDER BY token FOR UPDATE
), one AS MATERIALIZED (
    SELECT packed.token, packed.started_at, listed.task, listed.limit_id, listed.number, listed.place,
           ($2::bigint[] IS NULL OR listed.task = ANY ($2))
           AND ($3::bigint IS NULL OR row_number() OVER () <= $3) AS leaves
    FROM packed
    CROSS JOIN LATERAL unnest(packed.tasks, packed.limits, packed.numbers) WITH ORDINALITY
         AS listed (task, limit_id, number, place)
), shrunk AS (
    -- Tasks with slots stay before those without, as the lists are read side by side.
    UPDATE tidegate.leases l
    SET (tasks, limits, numbers) = (
        SELECT coalesce(array_agg(task ORDER BY place), '{}'),
               coalesce(array_agg(limit_id ORDER BY place) FILTER (WHERE limit_id IS NOT NULL), '{}'),
               coalesce(array_agg(number ORDER BY place) FILTER (WHERE limit_id IS NOT NULL), '{}')
        FROM one WHERE one.token = l.token AND NOT leaves)
    WHERE token = ANY (ARRAY (SELECT token FROM packed))
), held AS (
    INSERT INTO tidegate.slots (limit_id, number, task)
    SELECT limit_id, number, task FROM one WHERE leaves AND limit_id IS NOT NULL
    ON CONFLICT (limit_id, number) DO NOTHING
    RETURNING limit_id, number, task
), started AS (
    INSERT INTO tidegate.running (task, token, holds_slots, started_at)
    SELECT task, token, limit_id IS NOT NULL, started_at FROM one WHERE leaves
    ON CONFLICT (task) DO NOTHING
    RETURNING task, token
)
SELECT task, token, NULL AS limit_name, NULL AS number
FROM (SELECT task, token FROM one WHERE leaves EXCEPT ALL SELECT task, token FROM started) AS listed_twice
UNION ALL
SELECT task, NULL, coalesce((SELECT name FROM tidegate.limits WHERE id = limit_id), limit_id::text), number
FROM (
    SELECT limit_id, number, task FROM one WHERE leaves AND limit_id IS NOT NULL
    EXCEPT ALL
    SELECT limit_id, number, task FROM held
) AS held_twice
