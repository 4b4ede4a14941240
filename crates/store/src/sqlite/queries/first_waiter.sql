select limit_id, wait_reason, rank, tag, admission_seq, task, lane, queue_switches, in_job_window, due_at from waiters
where limit_id = ?1 and wait_reason between ?2 and ?3
order by wait_reason, rank, tag, admission_seq limit 1
