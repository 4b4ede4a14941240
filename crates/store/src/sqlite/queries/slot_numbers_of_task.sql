select limit_id, number from slots where task = ?1 order by limit_id, number
