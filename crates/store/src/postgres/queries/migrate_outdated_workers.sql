-- Live workers whose program knows less than version $1. One that never said what it knows is old: a claim
-- makes the row of a worker without a version. $2 is the time, if it is not the server's.
SELECT w.id FROM tidegate.workers w
WHERE w.alive_until > coalesce($2::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
  AND coalesce(w.schema_version, 0) < $1
ORDER BY w.id
