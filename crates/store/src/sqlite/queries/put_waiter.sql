insert into waiters (limit_id, wait_reason, rank, tag, admission_seq, task, lane, queue_switches, in_job_window, due_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
