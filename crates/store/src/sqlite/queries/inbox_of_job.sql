select task from inbox where job = ?1 order by task limit ?2
