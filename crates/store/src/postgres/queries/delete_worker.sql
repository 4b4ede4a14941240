-- Removes a worker that leaves. Gives its leases that have expired at $2, as `put_heartbeat.sql` does.
WITH lanes AS (DELETE FROM tidegate.worker_lanes WHERE worker = $1),
     registrations AS (DELETE FROM tidegate.registrations WHERE worker = $1),
     worker AS (DELETE FROM tidegate.workers WHERE id = $1)
SELECT ARRAY (SELECT token FROM (SELECT token, worker FROM tidegate.leases WHERE expires_at <= $2
                                 ORDER BY expires_at LIMIT 10000) AS expired
              WHERE worker = $1 LIMIT 100) AS unlisted
