delete from ready where lane = ?1 and rank = ?2 and tag = ?3 and task = ?4
