INSERT INTO tidegate.tasks (id, lane, kind, queue, group_name, job, workflow, unique_key, weight,
                            priority, max_attempts, timeout_ms, payload, due_at, on_failure, trace,
                            created_at)
SELECT *, $17::bigint
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[],
            $7::text[], $8::text[], $9::bigint[], $10::int[], $11::bigint[], $12::bigint[],
            $13::bytea[], $14::bigint[], $15::int[], $16::text[])
