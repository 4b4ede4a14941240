select count(*) from waiters
where limit_id = ?1 and (wait_reason, rank, tag, admission_seq) < (?2, ?3, ?4, ?5)
