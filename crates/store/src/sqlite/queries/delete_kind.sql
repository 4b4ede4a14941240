delete from kind where name = ?1
