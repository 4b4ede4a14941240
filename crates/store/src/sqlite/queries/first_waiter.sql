select limit_id, class, rank, tag, place, task, lane, moves, passed, since from line
where limit_id = ?1 and class between ?2 and ?3
order by class, rank, tag, place limit 1
