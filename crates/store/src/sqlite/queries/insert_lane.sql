insert into lane (id, queue, kind) values (?1, ?2, ?3)
