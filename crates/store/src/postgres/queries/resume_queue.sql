DELETE FROM tidegate.paused_queues WHERE name = $1
