-- `class = 4` is what the partial index asks for.
select limit_id, class, rank, tag, place, task, lane, moves, passed, since from line
where class = 4 and lane = ?1 order by limit_id, rank, tag, place limit ?2
