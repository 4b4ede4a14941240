update running set holds_slots = 1 where token = ?1 and task = ?2
