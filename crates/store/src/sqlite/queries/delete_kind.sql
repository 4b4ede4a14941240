delete from kinds where name = ?1
