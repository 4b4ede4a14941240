insert into registration (worker, group_name, capacity) values (?1, ?2, ?3)
