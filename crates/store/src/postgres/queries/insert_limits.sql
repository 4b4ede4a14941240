-- Limits that nobody holds or awaits yet: of jobs at submit, of workflows at the gate. Always
-- a transaction of its own: no submit or gate waits for another one's names.
WITH new AS (
    INSERT INTO tidegate.limits (name, capacity, source, base_capacity, base_source, version, applies_from_version,
                                 waiting, skipped, dirty, last_tag, in_window, share_weight,
                                 min_concurrency, priority, delay_ms)
    SELECT made.name, made.capacity, made.source, made.base_capacity, made.base_source, 1, 0,
           0, 0, false, 0, 0, made.share_weight, made.min_concurrency, made.priority, made.delay_ms
    FROM unnest($1::text[], $2::bigint[], $3::int[], $4::bigint[], $5::int[], $6::bigint[],
                $7::bigint[], $8::int[], $9::bigint[])
         WITH ORDINALITY
         AS made (name, capacity, source, base_capacity, base_source, share_weight, min_concurrency,
                  priority, delay_ms, place)
    WHERE NOT EXISTS (SELECT FROM tidegate.limits l WHERE l.name = made.name)
    ORDER BY made.place
    ON CONFLICT (name) DO NOTHING
    RETURNING id, capacity
)
INSERT INTO tidegate.slot_groups (limit_id, number, capacity)
SELECT new.id, g.number, new.capacity / 50 + (g.number < mod(new.capacity, 50))::integer
FROM new CROSS JOIN LATERAL generate_series(0, least(new.capacity, 50)::integer - 1) AS g (number)
WHERE new.capacity IS NOT NULL
