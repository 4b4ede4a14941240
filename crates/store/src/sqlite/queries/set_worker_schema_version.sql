update workers set schema_version = ?2 where id = ?1
