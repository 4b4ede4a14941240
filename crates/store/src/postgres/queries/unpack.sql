-- Gives everything that runs under some leases a row of its own; under all of them where none are
-- named. A task that two leases list runs under one of them.
WITH packed AS MATERIALIZED (
    SELECT token, tasks, started_at FROM tidegate.leases
    WHERE token = ANY (coalesce($1, ARRAY (SELECT token FROM tidegate.leases)))
      AND tasks <> '{}'
    ORDER BY token FOR UPDATE
), emptied AS (
    UPDATE tidegate.leases SET tasks = '{}' WHERE token = ANY (ARRAY (SELECT token FROM packed))
)
INSERT INTO tidegate.running (task, token, gated, started_at)
SELECT unnest(packed.tasks), packed.token, false, packed.started_at FROM packed
ON CONFLICT (task) DO NOTHING
