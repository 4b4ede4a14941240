select state, lane, submit_rank, submit_tag from tasks where id = ?1
