select 1 from inbox where task = ?1
