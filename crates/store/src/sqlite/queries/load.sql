-- The count ends where it is large enough: nobody asks how much too much it is.
select
    (select count(*) from (
        select 1 from ready
        where lane not in (select lane.id from lane join queue on queue.name = lane.queue)
        limit ?2
    )),
    (select count(*) from lease where expires_at <= ?1)
