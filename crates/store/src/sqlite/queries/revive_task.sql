-- Nothing is changed where another unfinished task carries the key.
update task
set state = null, result = null, error = null, finished_at = null, remove_at = null, spent = 0, deaths = 0,
    arrival = ?2
where id = ?1 and state is not null
    and not exists (
        select 1 from task other
        where other.unique_key = task.unique_key and other.unique_key is not null
            and other.state is null
    )
