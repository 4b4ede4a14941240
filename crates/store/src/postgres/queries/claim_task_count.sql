-- How many tasks a claim takes: $7, or as many as are left of that where others were handed on in the same
-- transaction. `claim_probe.sql` comes before, and the lanes follow.
, begun AS MATERIALIZED (
    SELECT token, cardinality(tasks) AS tasks FROM tidegate.leases
    WHERE token = nullif(current_setting('tidegate.new_lease', true), '')::bigint
), wanted AS MATERIALIZED (
    SELECT greatest($7::bigint - coalesce((SELECT tasks FROM begun), 0), 0) AS tasks
)
