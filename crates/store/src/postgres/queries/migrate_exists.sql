-- Whether there is a schema whose migrations one may read.
SELECT coalesce(has_table_privilege(to_regclass('tidegate.migrations')::oid, 'SELECT'), false) AS exists
