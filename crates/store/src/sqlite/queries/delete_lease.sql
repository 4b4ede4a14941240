delete from leases where token = ?1
