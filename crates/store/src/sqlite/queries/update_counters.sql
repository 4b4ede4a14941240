update counters
set last_task_id = ?1, last_limit_id = ?2, last_token = ?3, last_admission_seq = ?4, virtual_time = ?5,
    limits_version = ?6, notifications = ?7
where id = 1
