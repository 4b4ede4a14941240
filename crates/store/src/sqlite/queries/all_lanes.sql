select id, queue, kind from lane order by id
