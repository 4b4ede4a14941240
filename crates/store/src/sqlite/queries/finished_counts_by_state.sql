select state, count(*) from task where state is not null group by state
