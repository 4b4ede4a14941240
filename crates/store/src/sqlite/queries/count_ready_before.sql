select count(*) from ready where lane = ?1 and (rank, tag, task) < (?2, ?3, ?4)
