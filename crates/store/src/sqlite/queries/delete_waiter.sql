delete from waiters
where limit_id = ?1 and wait_reason = ?2 and rank = ?3 and tag = ?4 and admission_seq = ?5 and task = ?6
