select task from inbox order by task limit ?1
