INSERT INTO tidegate.paused_queues (name, paused_at) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING
