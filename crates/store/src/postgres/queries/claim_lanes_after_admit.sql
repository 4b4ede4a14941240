-- The same as `claim_lanes.sql` for a claim behind tasks that the same transaction has let in: their lanes are
-- read from the first of them on.
, admitted AS MATERIALIZED (
    -- The first of those that the same transaction has let in, and their lanes.
    SELECT lanes[1:3] AS key, lanes[4:] AS lanes
    FROM (SELECT nullif(current_setting('tidegate.admitted_lanes', true), '')::bigint[] AS lanes) AS of
), lane AS MATERIALIZED (
    SELECT array_agg(open.id) AS ids, array_agg(from_here.rank) AS ranks,
           array_agg(from_here.tag) AS tags, array_agg(from_here.task) AS tasks,
           $15::boolean AS takes_rest
    FROM seen CROSS JOIN admitted CROSS JOIN LATERAL unnest(seen.open) AS open (id)
    CROSS JOIN LATERAL (SELECT array_position($10::bigint[], open.id) AS place) AS floor
    CROSS JOIN LATERAL (
        SELECT coalesce(($11::bigint[])[floor.place], -9223372036854775808) AS rank,
               coalesce(($12::bigint[])[floor.place], 0) AS tag,
               coalesce(($13::bigint[])[floor.place], 0) AS task
    ) AS last
    CROSS JOIN LATERAL (
        SELECT CASE WHEN open.id = ANY (admitted.lanes)
                     AND (admitted.key[1], admitted.key[2], admitted.key[3]) < (last.rank, last.tag, last.task)
               THEN admitted.key END AS key
    ) AS low
    CROSS JOIN LATERAL (
        SELECT coalesce(low.key[1], last.rank) AS rank, coalesce(low.key[2], last.tag) AS tag,
               coalesce(low.key[3], last.task) AS task
    ) AS from_here
    WHERE open.id <> ALL ($9::bigint[]) AND seen.is_noted
      AND ($8 OR NOT seen.has_gate_work)
      -- The exits that were told in the same transaction are all ended.
      AND coalesce(current_setting('tidegate.skip_claim', true), '') <> 'true'
    HAVING count(*) <= $14::bigint
)
