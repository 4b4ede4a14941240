-- Rows the gate let through before a time. Left to itself the planner reads the whole lane.
select lane, rank, tag, task, limits_version, holds_slots, ready_at from ready indexed by ready_holds_slots
where holds_slots = 1 and lane = ?1 and ready_at < ?2 order by rank, tag, task limit ?3
