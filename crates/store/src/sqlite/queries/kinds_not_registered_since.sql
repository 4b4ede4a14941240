select name from kinds where registered_at < ?1 order by name
