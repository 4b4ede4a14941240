-- Live workers other than ?1 that last reported room.
select count(*) from workers
where id <> ?1 and alive_until > ?2 and report ->> 'accepting' and report ->> 'free' > 0
