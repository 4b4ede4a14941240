select limit_id, number, task from slot where task is not null order by limit_id, number
