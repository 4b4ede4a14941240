SELECT limit_id, number, task FROM tidegate.holdings ORDER BY limit_id, number
