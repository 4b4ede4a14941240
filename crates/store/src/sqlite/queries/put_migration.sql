insert into migration (version, name, checksum, applied_at) values (?1, ?2, ?3, ?4)
