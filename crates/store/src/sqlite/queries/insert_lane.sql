insert into lanes (id, queue, kind) values (?1, ?2, ?3)
