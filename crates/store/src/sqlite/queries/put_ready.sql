insert into ready (lane, rank, tag, task, limits_version, holds_slots, has_submit_key, ready_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
