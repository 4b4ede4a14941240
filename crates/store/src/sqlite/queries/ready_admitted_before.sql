-- Rows the gate let through before a time. Left to itself the planner reads the whole lane.
select lane, rank, tag, task, stamp, gated, since from ready indexed by ready_gated
where gated = 1 and lane = ?1 and since < ?2 order by rank, tag, task limit ?3
