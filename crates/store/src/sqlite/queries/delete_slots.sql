delete from slot where limit_id = ?1
