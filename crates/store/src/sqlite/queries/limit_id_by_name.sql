select id from limits where name = ?1
