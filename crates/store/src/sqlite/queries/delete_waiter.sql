delete from line
where limit_id = ?1 and class = ?2 and rank = ?3 and tag = ?4 and place = ?5 and task = ?6
