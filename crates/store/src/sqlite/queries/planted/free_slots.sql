update slot set task = null where task = ?1 and ?2 > 0
