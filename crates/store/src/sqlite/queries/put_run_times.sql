insert into pace (group_name, tasks, total_ms, heard_at) values (?1, ?2, ?3, ?4)
on conflict (group_name) do update
set tasks = excluded.tasks, total_ms = excluded.total_ms, heard_at = excluded.heard_at
