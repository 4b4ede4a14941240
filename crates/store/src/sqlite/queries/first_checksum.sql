select checksum from migration where version = 1
