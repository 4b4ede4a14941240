-- Of these leases ($1), those that are packed, and how many attempts they list.
SELECT token, cardinality(tasks)::bigint AS attempts FROM tidegate.leases
WHERE token = ANY ($1) AND tasks <> '{}'
ORDER BY token
