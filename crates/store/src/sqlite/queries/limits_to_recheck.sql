select id, dirty, recheck_at from limits where dirty = 1
union all
select id, 0, recheck_at from limits where dirty = 0 and recheck_at is not null
