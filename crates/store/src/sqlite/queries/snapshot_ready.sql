select lane, rank, tag, task, stamp, gated, since from ready
