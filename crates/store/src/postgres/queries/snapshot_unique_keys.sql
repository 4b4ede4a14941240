SELECT key, task FROM tidegate.unique_keys WHERE task IS NOT NULL ORDER BY key, task
