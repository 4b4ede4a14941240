SELECT task, lane, rank, tag, limits_version, holds_slots, ready_at FROM tidegate.ready
