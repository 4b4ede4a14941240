-- The lanes that a claim reads, each from where the last claim of this process ended ($9 to $12; none of
-- a lane that is looked at from its start), and how many tasks it takes of them: $6, or as many as are
-- left of that where others were handed on in the same transaction. None where something waits at the
-- gate that might come before them, unless it is told to go on ($7), or the worker has to be noted.
--
-- `look.sql` comes before, and what picks follows.
, begun AS MATERIALIZED (
    SELECT token, cardinality(tasks) AS tasks FROM tidegate.leases
    WHERE token = nullif(current_setting('tidegate.lease', true), '')::bigint
), wanted AS MATERIALIZED (
    SELECT greatest($6::bigint - coalesce((SELECT tasks FROM begun), 0), 0) AS tasks
), lane AS MATERIALIZED (
    SELECT open.id,
           coalesce(($10::bigint[])[floor.place], -9223372036854775808) AS rank,
           coalesce(($11::bigint[])[floor.place], 0) AS tag,
           coalesce(($12::bigint[])[floor.place], 0) AS task
    FROM open CROSS JOIN seen
    CROSS JOIN LATERAL (SELECT array_position($9::bigint[], open.id) AS place) AS floor
    WHERE open.id <> ALL ($8::bigint[]) AND seen.is_noted
      AND ($7 OR NOT seen.has_gate_work)
      -- The exits that were told in the same transaction are all ended.
      AND coalesce(current_setting('tidegate.has_exits', true), '') <> 'true'
)
