select 'scheduled', count(*) from scheduled
union all select 'pending', (select count(*) from inbox) + (select count(*) from ready)
union all select 'blocked', count(*) from waiters
union all select 'processing', count(*) from running
union all select state, count(*) from tasks where state is not null group by state
