-- The first rows of a lane start together: one statement instead of one per row.
insert into running (token, task, holds_slots, cancel_requested, started_at, ready_at)
select ?1, task, holds_slots, 0, ?2, ready_at from ready
where lane = ?3 and (rank, tag, task) <= (?4, ?5, ?6)
