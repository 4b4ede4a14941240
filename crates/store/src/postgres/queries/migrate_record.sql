INSERT INTO tidegate.migrations (version, name, checksum, oldest) VALUES ($1, $2, md5($3::text), $4)
