-- Leases of a worker that expire at ?1 or before. The index binds expires_at.
select token from leases where expires_at <= ?1 and worker = ?2
order by expires_at, token limit ?3
