WITH lanes AS (DELETE FROM tidegate.worker_lanes WHERE worker = $1),
     registrations AS (DELETE FROM tidegate.registrations WHERE worker = $1)
DELETE FROM tidegate.workers WHERE id = $1
