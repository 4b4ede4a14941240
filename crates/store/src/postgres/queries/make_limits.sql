-- Limits that nobody holds or awaits yet: of jobs at submit, of workflows at the gate. Always
-- a transaction of its own: no submit or gate waits for another one's names.
WITH new AS (
    INSERT INTO tidegate.limits (name, capacity, source, base_capacity, base_source, version, since,
                                 waiting, aside, dirty, share_weight, last_tag, ahead)
    SELECT made.name, made.capacity, made.source, made.base_capacity, made.base_source, 1, 0,
           0, 0, false, made.share_weight, 0, 0
    FROM unnest($1::text[], $2::bigint[], $3::int[], $4::bigint[], $5::int[], $6::bigint[])
         WITH ORDINALITY
         AS made (name, capacity, source, base_capacity, base_source, share_weight, place)
    WHERE NOT EXISTS (SELECT FROM tidegate.limits l WHERE l.name = made.name)
    ORDER BY made.place
    ON CONFLICT (name) DO NOTHING
    RETURNING id, capacity
)
INSERT INTO tidegate.slot_groups (limit_id, number, capacity)
SELECT new.id, g.number, new.capacity / 50 + (g.number < mod(new.capacity, 50))::integer
FROM new CROSS JOIN LATERAL generate_series(0, least(new.capacity, 50)::integer - 1) AS g (number)
WHERE new.capacity IS NOT NULL
