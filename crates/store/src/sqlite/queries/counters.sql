select last_task, last_limit, token, place, virtual_time, limits_version, news from meta
where id = 1
