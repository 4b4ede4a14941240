-- Leases that expire at ?1 or before, without those that the reaper leaves to their worker. The index binds
-- expires_at, and each worker is read by its primary key.
select token from leases
where expires_at <= ?1
  and (select heartbeat_expires_at > ?1 and leases.expires_at + heartbeat_lease_ms > ?1
       from workers where id = leases.worker) is not true
order by expires_at, token limit ?2
