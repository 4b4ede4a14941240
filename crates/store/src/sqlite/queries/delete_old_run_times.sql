delete from pace where heard_at < ?1
