delete from leases
where token = ?1 and not exists (select 1 from running where running.token = ?1)
