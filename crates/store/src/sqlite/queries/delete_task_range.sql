delete from tasks where id between ?1 and ?2
