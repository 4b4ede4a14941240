select limit_id, class, rank, tag, place, task, lane, moves, passed, since from line where task = ?1
