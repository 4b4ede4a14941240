delete from workers where id = ?1
