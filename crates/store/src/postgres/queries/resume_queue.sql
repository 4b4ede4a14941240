DELETE FROM tidegate.queues WHERE name = $1
