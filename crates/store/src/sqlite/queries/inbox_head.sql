select task from arrived order by task limit ?1
