select lane, rank, tag, task, stamp, gated, since from ready where task = ?1 and at_submit = 0
