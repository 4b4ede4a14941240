delete from fenced where not exists (select 1 from lease where lease.token = fenced.token)
