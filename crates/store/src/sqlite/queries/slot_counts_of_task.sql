select limit_id, count(*) from slot where task = ?1 group by limit_id order by limit_id
