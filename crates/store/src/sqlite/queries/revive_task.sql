-- Nothing is changed where another unfinished task carries the key.
update tasks
set state = null, result = null, error = null, finished_at = null, remove_at = null, attempts_used = 0, crashes = 0,
    due_at = ?2
where id = ?1 and state is not null
    and not exists (
        select 1 from tasks other
        where other.unique_key = tasks.unique_key and other.unique_key is not null
            and other.state is null
    )
