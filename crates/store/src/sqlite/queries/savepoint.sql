savepoint command
