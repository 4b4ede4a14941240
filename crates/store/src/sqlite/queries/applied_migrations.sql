select version, checksum from migrations order by version
