WITH worker AS (
    INSERT INTO tidegate.workers (id, alive_until) VALUES ($1, $2)
    ON CONFLICT (id) DO UPDATE SET alive_until = excluded.alive_until)
INSERT INTO tidegate.worker_lanes (worker, lane, served_until)
SELECT $1, lane, $2 FROM unnest($3::bigint[]) AS lane
ON CONFLICT (worker, lane) DO UPDATE SET served_until = excluded.served_until
