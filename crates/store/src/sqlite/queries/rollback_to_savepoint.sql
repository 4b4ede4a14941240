rollback to command
