delete from worker where alive_until < ?1
