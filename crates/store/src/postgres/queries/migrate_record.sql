INSERT INTO tidegate.migrations (version, name, checksum) VALUES ($1, $2, md5($3::text))
