select state, count(*) from tasks where state is not null group by state
