delete from queue where name = ?1
