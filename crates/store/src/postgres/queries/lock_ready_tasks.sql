SELECT task, lane, rank, tag, stamp, gated, since FROM tidegate.ready
WHERE task = ANY ($1) ORDER BY task FOR UPDATE
