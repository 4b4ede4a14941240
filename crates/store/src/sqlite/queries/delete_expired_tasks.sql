delete from tasks where id in (
    select id from tasks where remove_at <= ?1 order by remove_at, id limit ?2
)
