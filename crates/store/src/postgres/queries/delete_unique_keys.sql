DELETE FROM tidegate.unique_keys WHERE key = ANY ($1)
