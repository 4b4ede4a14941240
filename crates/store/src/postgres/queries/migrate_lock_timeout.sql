-- Whoever comes after a statement that waits for a table waits behind it.
SET LOCAL lock_timeout = '100ms'
