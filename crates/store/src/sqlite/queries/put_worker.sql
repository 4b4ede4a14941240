insert into workers (id, alive_until) values (?1, ?2)
on conflict (id) do update set alive_until = excluded.alive_until
