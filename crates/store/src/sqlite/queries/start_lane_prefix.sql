-- The first rows of a lane start together: one statement instead of one per row.
insert into running (token, task, gated, cancel, started_at, ready_at)
select ?1, task, gated, 0, ?2, since from ready
where lane = ?3 and (rank, tag, task) <= (?4, ?5, ?6)
