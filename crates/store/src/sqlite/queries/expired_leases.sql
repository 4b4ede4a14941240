select token from lease where expires_at <= ?1 order by expires_at, token limit ?2
