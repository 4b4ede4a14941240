select limit_id, number from slot where task = ?1 order by limit_id, number
