delete from registration where worker in (select id from worker where alive_until < ?1)
