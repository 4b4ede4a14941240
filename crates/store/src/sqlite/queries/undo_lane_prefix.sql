delete from running where token = ?1 and task in (
    select task from ready where lane = ?2 and (rank, tag, task) <= (?3, ?4, ?5)
)
