select number + 1 from slots where limit_id = ?1 order by number desc limit 1
