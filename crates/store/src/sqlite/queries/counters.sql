select last_task_id, last_limit_id, last_token, last_admission_seq, virtual_time, limits_version,
    notifications
from counters where id = 1
