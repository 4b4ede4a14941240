select name, paused_at from paused_queues
