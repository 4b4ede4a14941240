select min_program_version from migrations where version = ?1
