insert into tasks (id, lane, priority, weight, attempts_used, crashes, max_attempts, timeout_ms, submit_rank,
    submit_tag, due_at, created_at, group_name, job, workflow, unique_key, payload, on_failure, trace)
values (?1, ?2, ?3, ?4, 0, 0, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15,
    ?16, ?17)
