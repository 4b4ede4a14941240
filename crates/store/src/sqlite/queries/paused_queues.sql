select name, paused_at from queue
