select lane, rank, tag, task, limits_version, holds_slots, ready_at from ready
where lane = ?1 order by rank, tag, task limit ?2
