select number from slot where limit_id = ?1 and task is null order by number limit ?2
