delete from task where id between ?1 and ?2
