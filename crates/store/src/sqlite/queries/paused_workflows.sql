-- Workflows that go no further, and why.
select name, paused_by from limits where paused_by is not null and name >= 'workflow:' and name < 'workflow;'
order by name
