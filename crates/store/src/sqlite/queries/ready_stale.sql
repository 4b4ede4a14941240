-- Rows the gate let through before a time; `gated = 1` is what the partial index asks for.
select lane, rank, tag, task, stamp, gated, since from ready
where gated = 1 and lane = ?1 and since < ?2 order by rank, tag, task limit ?3
