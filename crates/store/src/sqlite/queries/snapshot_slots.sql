select limit_id, number, task from slots where task is not null order by limit_id, number
