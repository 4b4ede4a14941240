select version, checksum from migration order by version
