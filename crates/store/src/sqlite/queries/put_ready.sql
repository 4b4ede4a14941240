insert into ready (lane, rank, tag, task, stamp, gated, at_submit, since)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
