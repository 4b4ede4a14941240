insert or ignore into fenced_attempts (token, task) values (?1, ?2)
