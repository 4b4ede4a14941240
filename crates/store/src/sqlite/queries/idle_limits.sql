select id from limits where source = 'unset' and held = 0 and waiting = 0 and paused_by is null
order by id limit ?1
