select state, lane, ready_rank, ready_tag from task where id = ?1
