insert into leases (token, worker, expires_at) values (?1, ?2, ?3)
