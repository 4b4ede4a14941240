-- Less than the server's own patience with a deadlock, which is a second.
SET LOCAL lock_timeout = '300ms'
