-- The lanes that a claim reads, side by side, each from where the last claim of this process ended ($10 to
-- $13; none of a lane that is looked at from its start). None where something waits at the gate that might
-- come before them, unless it is told to go on ($8), or the worker has to be noted, or there are more than
-- the text can read ($14). $15 is for those who meet tasks that a limit began to apply to.
--
-- `claim_task_count.sql` comes before, and what picks follows.
, lane AS MATERIALIZED (
    SELECT array_agg(open.id) AS ids,
           array_agg(coalesce(($11::bigint[])[floor.place], -9223372036854775808)) AS ranks,
           array_agg(coalesce(($12::bigint[])[floor.place], 0)) AS tags,
           array_agg(coalesce(($13::bigint[])[floor.place], 0)) AS tasks,
           $15::boolean AS takes_rest
    FROM seen CROSS JOIN LATERAL unnest(seen.open) AS open (id)
    CROSS JOIN LATERAL (SELECT array_position($10::bigint[], open.id) AS place) AS floor
    WHERE open.id <> ALL ($9::bigint[]) AND seen.is_noted
      AND ($8 OR NOT seen.has_gate_work)
      -- The exits that were told in the same transaction are all ended.
      AND coalesce(current_setting('tidegate.skip_claim', true), '') <> 'true'
    HAVING count(*) <= $14::bigint
)
