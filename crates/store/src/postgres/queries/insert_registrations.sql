-- What a worker says now, instead of what it said before.
INSERT INTO tidegate.registrations (worker, group_name, capacity)
SELECT $1, said.group_name, said.capacity
FROM unnest($2::text[], $3::bigint[]) AS said (group_name, capacity)
