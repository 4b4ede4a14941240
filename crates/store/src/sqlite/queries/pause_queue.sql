insert into paused_queues (name, paused_at) values (?1, ?2) on conflict (name) do nothing
