delete from workers where alive_until < ?1
