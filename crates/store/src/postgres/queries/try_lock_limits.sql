-- Those that nobody holds, locked: a claim tidies up what it can and waits for nobody.
SELECT id FROM tidegate.limits
WHERE id = ANY ($1)
  AND (NOT starts_with(name, 'group:') OR pg_try_advisory_xact_lock(7453127, mod(id, 256)::int))
ORDER BY id FOR UPDATE SKIP LOCKED
