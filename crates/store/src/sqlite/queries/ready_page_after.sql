select lane, rank, tag, task, limits_version, holds_slots, ready_at from ready
where lane = ?1 and (rank, tag, task) > (?3, ?4, ?5) order by rank, tag, task limit ?2
