delete from fenced_attempts where not exists (select 1 from leases where leases.token = fenced_attempts.token)
