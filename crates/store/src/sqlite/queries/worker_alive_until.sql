select alive_until from workers where id = ?1
