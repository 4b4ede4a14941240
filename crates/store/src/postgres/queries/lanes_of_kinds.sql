SELECT id, queue, kind FROM tidegate.lanes WHERE kind = ANY ($1) ORDER BY id
