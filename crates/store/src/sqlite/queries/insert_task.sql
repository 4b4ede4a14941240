insert into task (id, lane, priority, weight, spent, deaths, max_attempts, timeout_ms, ready_rank,
    ready_tag, arrival, created_at, group_name, job, workflow, unique_key, payload, on_failure, trace)
values (?1, ?2, ?3, ?4, 0, 0, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15,
    ?16, ?17)
