select coalesce(max(number) + 1, 0) from slot where limit_id = ?1
