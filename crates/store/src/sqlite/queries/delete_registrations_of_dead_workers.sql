delete from registrations where worker in (select id from workers where alive_until < ?1)
