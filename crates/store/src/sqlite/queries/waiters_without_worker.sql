-- `wait_reason = 4` is what the partial index asks for.
select limit_id, wait_reason, rank, tag, admission_seq, task, lane, queue_switches, in_job_window, due_at from waiters
where wait_reason = 4 and lane = ?1 order by limit_id, rank, tag, admission_seq limit ?2
