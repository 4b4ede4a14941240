insert into line (limit_id, class, rank, tag, place, task, lane, moves, passed, since)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
