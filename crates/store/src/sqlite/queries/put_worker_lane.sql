insert into worker_lanes (lane, worker, served_until) values (?1, ?2, ?3)
on conflict (lane, worker) do update set served_until = excluded.served_until
