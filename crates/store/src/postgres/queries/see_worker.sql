WITH worker AS (
    INSERT INTO tidegate.workers (id, alive_until) VALUES ($1, $2)
    ON CONFLICT (id) DO UPDATE SET alive_until = excluded.alive_until)
INSERT INTO tidegate.worker_lanes (worker, lane) SELECT $1, unnest($3::bigint[])
ON CONFLICT (worker, lane) DO NOTHING
