delete from registration where worker = ?1
