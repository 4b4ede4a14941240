select lane, rank, tag, task, limits_version, holds_slots, ready_at from ready where task = ?1 and has_submit_key = 0
