insert into scheduled (task, run_at) values (?1, ?2)
