-- The count ends where it is large enough: nobody asks how much too much it is.
-- The leases are counted by the condition of `abandoned_leases.sql`.
select
    (select count(*) from (
        select 1 from ready
        where lane not in (select lanes.id from lanes join paused_queues on paused_queues.name = lanes.queue)
        limit ?2
    )),
    (select count(*) from leases
     where expires_at <= ?1
       and (select heartbeat_expires_at > ?1 and leases.expires_at + heartbeat_lease_ms > ?1
            from workers where id = leases.worker) is not true)
