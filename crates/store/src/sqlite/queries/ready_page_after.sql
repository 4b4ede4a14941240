select lane, rank, tag, task, stamp, gated, since from ready
where lane = ?1 and (rank, tag, task) > (?3, ?4, ?5) order by rank, tag, task limit ?2
