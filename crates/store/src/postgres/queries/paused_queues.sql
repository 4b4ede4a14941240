SELECT name, paused_at FROM tidegate.paused_queues
