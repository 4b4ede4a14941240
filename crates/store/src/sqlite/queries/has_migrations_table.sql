-- A file of an earlier build may have none.
select count(*) > 0 from sqlite_schema where type = 'table' and name = 'migrations'
