insert or ignore into fenced (token, task) values (?1, ?2)
