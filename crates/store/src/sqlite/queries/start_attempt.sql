insert into running (token, task, holds_slots, cancel_requested, started_at, ready_at) values (?1, ?2, ?3, 0, ?4, ?5)
