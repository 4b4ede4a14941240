select checksum from migrations where version = 1
