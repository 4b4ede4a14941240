-- A notice of its own. It holds up all others while it commits, and nothing is lost with it: it does not wait
-- for the disk.
SELECT set_config('synchronous_commit', 'off', true), pg_notify('tidegate', '')
