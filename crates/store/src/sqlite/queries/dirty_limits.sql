select id from limits where dirty = 1 order by id
