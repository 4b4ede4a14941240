delete from limits where id = ?1
