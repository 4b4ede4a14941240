-- Workflows that go no further, and why.
select name, halt from limits where halt is not null and name >= 'workflow:' and name < 'workflow;'
order by name
