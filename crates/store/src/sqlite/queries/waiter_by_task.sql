select limit_id, wait_reason, rank, tag, admission_seq, task, lane, queue_switches, in_job_window, due_at
from waiters where task = ?1
