insert into run_times (group_name, tasks, total_ms, updated_at) values (?1, ?2, ?3, ?4)
on conflict (group_name) do update
set tasks = excluded.tasks, total_ms = excluded.total_ms, updated_at = excluded.updated_at
