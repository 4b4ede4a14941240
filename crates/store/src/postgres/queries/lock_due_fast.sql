-- Takes the locks for the fast admission of due tasks, if a task is due: the lock of the gatekeeper, which is
-- only tried, and the buckets of the limits that the due tasks need. The locks are taken in a statement of
-- their own. So the snapshot of `admit_due_fast.sql`, sent in the same round trip, contains everything that the
-- previous holders of the locks committed. That statement reads the time from `tidegate.admission_time`, which
-- is empty if no task is due or another transaction is the gatekeeper, and the buckets from
-- `tidegate.locked_buckets`. $1 is the time; NULL means the clock of the server.
WITH moment AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now
), gate AS MATERIALIZED (
    SELECT CASE WHEN EXISTS (SELECT FROM tidegate.scheduled WHERE run_at <= (SELECT now FROM moment))
           THEN pg_try_advisory_xact_lock(7453126, 2) ELSE false END AS is_gatekeeper, now
    FROM moment
), due AS MATERIALIZED (
    SELECT task FROM tidegate.scheduled
    WHERE run_at <= (SELECT CASE WHEN is_gatekeeper THEN now END FROM gate)
    ORDER BY run_at, task LIMIT 1000
), needed AS MATERIALIZED (
    SELECT coalesce(array_agg(DISTINCT mod(l.id, 256)::int ORDER BY mod(l.id, 256)::int), '{}') AS buckets
    FROM due
    CROSS JOIN LATERAL (SELECT group_name, kind FROM tidegate.tasks WHERE id = due.task OFFSET 0) AS t
    CROSS JOIN LATERAL (
        SELECT id FROM tidegate.limits WHERE name = 'group:' || coalesce(t.group_name, t.kind) OFFSET 0
    ) AS l
), locked AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(7453127, bucket)
    FROM needed CROSS JOIN LATERAL unnest(needed.buckets) AS one (bucket)
)
SELECT set_config('tidegate.admission_time', CASE WHEN gate.is_gatekeeper THEN gate.now::text ELSE '' END, true),
       set_config('tidegate.locked_buckets', needed.buckets::text, true),
       (SELECT count(*) FROM locked) AS locked
FROM gate CROSS JOIN needed
