select id, dirty, look_at from limits where dirty = 1
union all
select id, 0, look_at from limits where dirty = 0 and look_at is not null
