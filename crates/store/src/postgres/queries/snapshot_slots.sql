SELECT limit_id, number, task FROM tidegate.held_slots ORDER BY limit_id, number
