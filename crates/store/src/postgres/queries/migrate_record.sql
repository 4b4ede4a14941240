INSERT INTO tidegate.migrations (version, name, checksum, min_program_version) VALUES ($1, $2, md5($3::text), $4)
