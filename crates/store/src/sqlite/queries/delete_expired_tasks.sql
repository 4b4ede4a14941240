delete from task where id in (
    select id from task where remove_at <= ?1 order by remove_at, id limit ?2
)
