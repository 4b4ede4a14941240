select lane, rank, tag, task, limits_version, holds_slots, ready_at from ready
