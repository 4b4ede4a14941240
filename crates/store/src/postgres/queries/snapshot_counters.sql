SELECT virtual_time, limits_version,
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tidegate.tokens) AS token,
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tidegate.places) AS place,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
FROM tidegate.counters
