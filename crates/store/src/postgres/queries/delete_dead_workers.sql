WITH dead AS (
    DELETE FROM tidegate.workers WHERE id IN (
        SELECT id FROM tidegate.workers WHERE alive_until < $1 FOR UPDATE SKIP LOCKED)
    RETURNING id),
registrations AS (
    DELETE FROM tidegate.registrations WHERE worker IN (SELECT id FROM dead))
DELETE FROM tidegate.worker_lanes WHERE worker IN (SELECT id FROM dead)
