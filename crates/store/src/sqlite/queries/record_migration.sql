insert into migrations (version, name, checksum, applied_at, min_program_version) values (?1, ?2, ?3, ?4, ?5)
