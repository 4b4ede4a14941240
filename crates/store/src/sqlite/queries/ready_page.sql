select lane, rank, tag, task, stamp, gated, since from ready
where lane = ?1 order by rank, tag, task limit ?2
