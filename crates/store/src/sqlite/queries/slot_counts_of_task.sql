select limit_id, count(*) from slots where task = ?1 group by limit_id order by limit_id
