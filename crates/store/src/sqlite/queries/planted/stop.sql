delete from running where task = ?2 returning cancel, gated
