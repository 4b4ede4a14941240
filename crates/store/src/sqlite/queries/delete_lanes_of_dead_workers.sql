delete from worker_lane where worker in (select id from worker where alive_until < ?1)
