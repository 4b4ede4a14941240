-- One lease row for a whole claim.
WITH lease AS (
    INSERT INTO tidegate.leases (token, worker, expires_at) VALUES ($1, $2, $3))
INSERT INTO tidegate.running (task, token, gated, started_at)
SELECT task, $1, gated, $6 FROM unnest($4::bigint[], $5::boolean[]) AS started (task, gated)
