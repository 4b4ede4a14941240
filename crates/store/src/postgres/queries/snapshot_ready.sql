SELECT task, lane, rank, tag, stamp, gated, since FROM tidegate.ready
