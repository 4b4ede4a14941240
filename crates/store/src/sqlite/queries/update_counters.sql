update meta
set last_task = ?1, last_limit = ?2, token = ?3, place = ?4, virtual_time = ?5,
    limits_version = ?6, news = ?7
where id = 1
