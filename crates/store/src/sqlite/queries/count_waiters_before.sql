select count(*) from line
where limit_id = ?1 and (class, rank, tag, place) < (?2, ?3, ?4, ?5)
