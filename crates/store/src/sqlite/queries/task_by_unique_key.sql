select id from tasks where unique_key = ?1 and state is null
