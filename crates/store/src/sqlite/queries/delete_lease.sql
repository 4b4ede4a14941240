delete from lease where token = ?1
