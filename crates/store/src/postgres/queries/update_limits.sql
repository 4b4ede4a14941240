-- Fails, by a division by zero, where a row is missing: a COMMIT is sent together with this statement.
WITH put AS (
    UPDATE tidegate.limits l
    SET capacity = n.capacity, source = n.source, base_capacity = n.base_capacity,
        base_source = n.base_source, version = n.version, waiting = n.waiting,
        skipped = n.skipped, reserving_task = n.reserving_task, dirty = n.dirty, last_tag = n.last_tag,
        in_window = n.in_window, window_full = n.window_full, parked_total = n.parked_total,
        allows_hand_off = n.allows_hand_off, paused_by = n.paused_by,
        recheck_at = n.recheck_at, share_weight = n.share_weight, min_concurrency = n.min_concurrency,
        priority = n.priority, delay_ms = n.delay_ms, next_start_at = n.next_start_at
    FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bigint[], $5::int[], $6::bigint[],
                $7::bigint[], $8::bigint[], $9::bigint[], $10::boolean[],
                $11::bigint[], $12::bigint[], $13::boolean[], $14::bigint[], $15::boolean[],
                $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::int[], $21::bigint[],
                $22::bigint[])
         AS n (id, capacity, source, base_capacity, base_source, version, waiting, skipped,
               reserving_task, dirty, last_tag, in_window, window_full, parked_total, allows_hand_off, paused_by,
               recheck_at, share_weight, min_concurrency, priority, delay_ms, next_start_at)
    CROSS JOIN LATERAL (SELECT ctid FROM tidegate.limits WHERE id = n.id OFFSET 0) AS row
    WHERE l.ctid = row.ctid
    RETURNING 1
)
SELECT 1 / (count(*) = cardinality($1))::int AS is_all FROM put
