SELECT name, paused_at FROM tidegate.queues
