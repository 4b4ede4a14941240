insert into slot (limit_id, number, task) values (?1, ?2, ?3)
