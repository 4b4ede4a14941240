select 'scheduled', count(*) from scheduled
union all select 'pending', (select count(*) from arrived) + (select count(*) from ready)
union all select 'blocked', count(*) from line
union all select 'processing', count(*) from running
union all select state, count(*) from task where state is not null group by state
