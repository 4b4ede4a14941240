insert into slots (limit_id, number, task) values (?1, ?2, ?3)
