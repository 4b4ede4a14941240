-- Kinds that a submit names first; a registration that came earlier stays.
INSERT INTO tidegate.kinds (name, queue, max_attempts, backoff_base_ms, backoff_cap_ms, max_crashes)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[],
                     $6::bigint[])
         AS kind (name, queue, max_attempts, backoff_base_ms, backoff_cap_ms, max_crashes)
ORDER BY name COLLATE "C"
ON CONFLICT (name) DO NOTHING
