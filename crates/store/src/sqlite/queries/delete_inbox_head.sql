delete from inbox where task <= ?1
