-- Leases that end at ?1 or before, of the worker ?3 or of all. The index binds expires_at.
select token from lease where expires_at <= ?1 and (?3 is null or worker = ?3)
order by expires_at, token limit ?2
