SELECT id, queue, kind FROM tidegate.lanes
WHERE queue = ANY ($1) AND kind = ANY ($2) ORDER BY id
