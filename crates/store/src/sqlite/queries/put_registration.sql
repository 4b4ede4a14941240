insert into registrations (worker, group_name, capacity) values (?1, ?2, ?3)
