select last_task, last_limit, token, place, virtual_time, limits_version from meta where id = 1
