select name from kind where seen_at < ?1 order by name
