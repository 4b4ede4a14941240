-- Leases that expire at ?1 or before, without those that the reaper leaves to their worker. The index binds
-- expires_at, and each worker is read by its primary key.
select token from lease
where expires_at <= ?1
  and (select heartbeat_until > ?1 and lease.expires_at + heartbeat_lease_ms > ?1
       from worker where id = lease.worker) is not true
order by expires_at, token limit ?2
