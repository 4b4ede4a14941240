-- The count ends where it is large enough: nobody asks how much too much it is.
-- The leases are counted by the condition of `abandoned_leases.sql`.
select
    (select count(*) from (
        select 1 from ready
        where lane not in (select lane.id from lane join queue on queue.name = lane.queue)
        limit ?2
    )),
    (select count(*) from lease
     where expires_at <= ?1
       and (select heartbeat_until > ?1 and lease.expires_at + heartbeat_lease_ms > ?1
            from worker where id = lease.worker) is not true)
