-- The lanes that a claim reads, each from where the last claim of this process ended ($10 to $13; none of
-- a lane that is looked at from its start). None where something waits at the gate that might come before
-- them, unless it is told to go on ($8), or the worker has to be noted.
--
-- `wanted.sql` comes before, and what picks follows.
, lane AS MATERIALIZED (
    SELECT open.id,
           coalesce(($11::bigint[])[floor.place], -9223372036854775808) AS rank,
           coalesce(($12::bigint[])[floor.place], 0) AS tag,
           coalesce(($13::bigint[])[floor.place], 0) AS task
    FROM seen CROSS JOIN LATERAL unnest(seen.open) AS open (id)
    CROSS JOIN LATERAL (SELECT array_position($10::bigint[], open.id) AS place) AS floor
    WHERE open.id <> ALL ($9::bigint[]) AND seen.is_noted
      AND ($8 OR NOT seen.has_gate_work)
      -- The exits that were told in the same transaction are all ended.
      AND coalesce(current_setting('tidegate.has_exits', true), '') <> 'true'
)
