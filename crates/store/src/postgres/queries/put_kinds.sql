-- Ordered, so that two registrations of the same kinds do not wait for each other in a circle.
INSERT INTO tidegate.kinds (name, queue, max_attempts, timeout_ms, window_start_ms, window_end_ms,
                            backoff_base_ms, backoff_cap_ms, remove_on_completed_days,
                            remove_on_failed_days, max_crashes, registered_at)
SELECT kind.*, $13::bigint FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[],
                     $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[],
                     $11::bigint[])
         AS kind (name, queue, max_attempts, timeout_ms, window_start_ms, window_end_ms,
                  backoff_base_ms, backoff_cap_ms, remove_on_completed_days,
                  remove_on_failed_days, max_crashes)
ORDER BY name COLLATE "C"
ON CONFLICT (name) DO UPDATE SET
    queue = excluded.queue, max_attempts = excluded.max_attempts,
    timeout_ms = excluded.timeout_ms, window_start_ms = excluded.window_start_ms,
    window_end_ms = excluded.window_end_ms, backoff_base_ms = excluded.backoff_base_ms,
    backoff_cap_ms = excluded.backoff_cap_ms,
    remove_on_completed_days = excluded.remove_on_completed_days,
    remove_on_failed_days = excluded.remove_on_failed_days,
    max_crashes = excluded.max_crashes,
    -- Whoever else made it known counts on it.
    registered_at = CASE WHEN tidegate.kinds.registered_at IS NOT NULL THEN excluded.registered_at END
-- Where it is not to be overwritten, a kind that is known stays.
WHERE $12::boolean
