select count(*) > 0 from pragma_table_info('migration') where name = 'oldest'
