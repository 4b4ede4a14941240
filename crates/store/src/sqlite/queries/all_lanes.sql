select id, queue, kind from lanes order by id
