SELECT limit_id, number, task FROM tidegate.slots ORDER BY limit_id, number
