select id from task where unique_key = ?1 and state is null
