delete from paused_queues where name = ?1
