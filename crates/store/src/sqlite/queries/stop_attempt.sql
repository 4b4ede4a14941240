delete from running where token = ?1 and task = ?2 returning cancel_requested, holds_slots
