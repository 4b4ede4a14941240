select task from arrived where job = ?1 order by task limit ?2
