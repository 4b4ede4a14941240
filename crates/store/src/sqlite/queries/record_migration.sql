insert into migration (version, name, checksum, applied_at, oldest) values (?1, ?2, ?3, ?4, ?5)
