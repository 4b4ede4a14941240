delete from worker_lanes where worker in (select id from workers where alive_until < ?1)
