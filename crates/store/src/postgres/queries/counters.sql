-- The counters and the server's time. Read before any limit's name is looked up: a stamp must
-- never be newer than what its bearer knew of the limits.
SELECT virtual_time, limits_version,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
FROM tidegate.counters
