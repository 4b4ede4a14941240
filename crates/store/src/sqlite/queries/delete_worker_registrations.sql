delete from registrations where worker = ?1
