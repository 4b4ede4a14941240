insert into running (token, task, gated, cancel, started_at, ready_at) values (?1, ?2, ?3, 0, ?4, ?5)
