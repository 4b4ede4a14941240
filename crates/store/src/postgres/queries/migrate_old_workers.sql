-- Live workers whose program knows less than version $1. One that never said what it knows is old, and
-- so is every one of a schema that has no such column. $2 is the time, if it is not the server's.
SELECT w.id FROM tidegate.workers w
WHERE w.alive_until > coalesce($2::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
  AND coalesce((to_jsonb(w) ->> 'schema_version')::bigint, 0) < $1
ORDER BY w.id
